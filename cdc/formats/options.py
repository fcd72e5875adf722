"""The operator's decisions about formats, and what a registry is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Format = Literal["json", "json_schema", "avro", "protobuf", "json_schema_registry"]
Kind = Literal["AVRO", "JSON", "PROTOBUF"]
"""Kind of a schema, as registries call it."""
Unsigned = Literal["long", "decimal", "string"]
Decimals = Literal["variable", "string"]
EnvelopeForm = Literal["debezium", "flat"]
Source = Literal["full", "lean"]
SubjectStrategy = Literal["topic", "record", "topic_record"]


@dataclass(frozen=True, slots=True)
class Registration:
    """A schema as a registry must have it: the subject, the kind, and the schema's text."""

    subject: str
    kind: Kind
    text: str


SchemaIds = Callable[[Registration], int]
"""Function that returns the id of a schema, and waits until the registry has given it one."""


def _no_registry(wanted: Registration) -> int:
    raise AssertionError(f"{wanted.subject} needs a registry, and the configuration has none")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The format of keys and of values, and how a schema represents what Tarantool's types can hold."""

    key: Format = "json"
    value: Format = "json"
    unsigned: Unsigned = "long"
    decimal: Decimals = "variable"
    source: Source = "full"
    envelope: EnvelopeForm = "debezium"
    subject: SubjectStrategy = "topic"
    schema_ids: SchemaIds = _no_registry
    shard: str = ""
    """The fleet's name of the replica set that the events are from, for their source; empty outside of fleets."""

    marks_moves: bool = False
    """Whether the source says which events moves of buckets have made."""

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled row path makes such events, too."""
        return self.envelope == "debezium" and not {self.key, self.value} - {"json", "avro"}


JSON_FORMATS: Final = FormatOptions()
"""The default: plain JSON for keys and values."""
