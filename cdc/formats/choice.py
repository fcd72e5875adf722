"""Choice of the envelope for the configured formats of keys and values."""

from __future__ import annotations

from typing import Final

from cdc.events.envelope import Envelope, KeyPieces
from cdc.formats import avro_events, connect_events
from cdc.formats.avro_events import AvroEnvelope
from cdc.formats.connect_events import ConnectEnvelope
from cdc.formats.lean import LeanAvroEnvelope, LeanConnectEnvelope, LeanEnvelope
from cdc.formats.options import FormatOptions

_KEYS: Final = {"json_schema": connect_events.key_pieces, "avro": avro_events.key_pieces}
_ENVELOPES: Final = {
    ("json_schema", "full"): ConnectEnvelope,
    ("json_schema", "lean"): LeanConnectEnvelope,
    ("avro", "full"): AvroEnvelope,
    ("avro", "lean"): LeanAvroEnvelope,
}


def new_envelope(version: str, prefix: str, options: FormatOptions) -> Envelope:
    """Return the envelope of a daemon's events: `version` is the daemon's, `prefix` its prefix of topics."""
    keys = _key_pieces(prefix, options)
    if options.value == "json":
        return (LeanEnvelope if options.source == "lean" else Envelope)(version, prefix, keys)
    return _ENVELOPES[options.value, options.source](version, prefix, keys, options)


def _key_pieces(prefix: str, options: FormatOptions) -> KeyPieces | None:
    return None if options.key == "json" else _KEYS[options.key](prefix, options)
