"""Confluent's wire form: a zero byte and the schema's id in four bytes precede each key and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cdc.formats.avro_schema import avro_text
from cdc.formats.json_document import document_text
from cdc.formats.names import cleaned_path
from cdc.formats.options import FormatOptions, Kind, Registration
from cdc.formats.proto_schema import proto_text
from cdc.formats.schemas import Struct

_TEXTS: Final[dict[Kind, Callable[[Struct], str]]] = {"AVRO": avro_text, "JSON": document_text, "PROTOBUF": proto_text}


def header(options: FormatOptions, topic: str, side: str, struct: Struct, kind: Kind) -> bytes:
    """Return what precedes each key or value (`side`) with this schema, once the registry has given it an id."""
    wanted = Registration(subject_of(options, topic, side, struct, kind), kind, _TEXTS[kind](struct))
    return b"\x00" + options.schema_ids(wanted).to_bytes(4, "big")


def subject_of(options: FormatOptions, topic: str, side: str, struct: Struct, kind: Kind) -> str:
    """Return the subject under which a schema is registered."""
    name = cleaned_path(struct.name) if kind != "JSON" else struct.name
    return {"topic": f"{topic}-{side}", "record": name, "topic_record": f"{topic}-{name}"}[options.subject]
