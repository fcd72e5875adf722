"""Choice of the envelope for the configured formats of keys and values."""

from __future__ import annotations

from typing import Final

from cdc.events.envelope import Envelope, KeyPieces
from cdc.formats import avro_events, connect_events, proto_events
from cdc.formats.avro_events import AvroEnvelope
from cdc.formats.connect_events import ConnectEnvelope, RegisteredJsonEnvelope
from cdc.formats.flat import FlatAvroEnvelope, FlatConnectEnvelope, FlatEnvelope, FlatProtoEnvelope, FlatRegisteredJsonEnvelope
from cdc.formats.lean import LeanAvroEnvelope, LeanConnectEnvelope, LeanEnvelope, LeanProtoEnvelope, LeanRegisteredJsonEnvelope
from cdc.formats.options import FormatOptions
from cdc.formats.proto_events import ProtoEnvelope

_KEYS: Final = {
    "json_schema": connect_events.key_pieces,
    "json_schema_registry": connect_events.registered_key_pieces,
    "avro": avro_events.key_pieces,
    "protobuf": proto_events.key_pieces,
}
_ENVELOPES: Final = {
    ("json_schema", "full"): ConnectEnvelope,
    ("json_schema", "lean"): LeanConnectEnvelope,
    ("json_schema", "flat"): FlatConnectEnvelope,
    ("json_schema_registry", "full"): RegisteredJsonEnvelope,
    ("json_schema_registry", "lean"): LeanRegisteredJsonEnvelope,
    ("json_schema_registry", "flat"): FlatRegisteredJsonEnvelope,
    ("avro", "full"): AvroEnvelope,
    ("avro", "lean"): LeanAvroEnvelope,
    ("avro", "flat"): FlatAvroEnvelope,
    ("protobuf", "full"): ProtoEnvelope,
    ("protobuf", "lean"): LeanProtoEnvelope,
    ("protobuf", "flat"): FlatProtoEnvelope,
}
_IN_JSON: Final = {"full": Envelope, "lean": LeanEnvelope, "flat": FlatEnvelope}


def new_envelope(version: str, prefix: str, options: FormatOptions) -> Envelope:
    """Return the envelope of a daemon's events: `version` is the daemon's, `prefix` its prefix of topics."""
    keys = _key_pieces(prefix, options)
    shape = "flat" if options.envelope == "flat" else options.source
    if options.value == "json":
        return _IN_JSON[shape](version, prefix, keys, options.shard)
    return _ENVELOPES[options.value, shape](version, prefix, keys, options)


def _key_pieces(prefix: str, options: FormatOptions) -> KeyPieces | None:
    return None if options.key == "json" else _KEYS[options.key](prefix, options)
