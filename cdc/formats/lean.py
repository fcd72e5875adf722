"""Events with a lean source: a few fields, and no transaction, for topics where each byte counts.

{"op":"c","before":null,"after":{"id":1},"source":{"name":"shop","ts_ms":…,"table":"users","lsn":188,"seq":4711,
  "schema_version":3},"ts_ms":…}
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from cdc.events.envelope import SEQ, Envelope, KeyPieces, SharedPieces, SpaceEvents, move_text, origin_text
from cdc.events.json_values import encode
from cdc.events.moves import Move
from cdc.formats.avro_events import AvroEnvelope, shard_of
from cdc.formats.avro_values import NULL, PRESENT, long, string
from cdc.formats.connect_events import ConnectEnvelope, RegisteredJsonEnvelope
from cdc.formats.options import FormatOptions
from cdc.formats.proto_events import ProtoEnvelope, lean_time, shard_field, source_field, source_until_seq
from cdc.formats.proto_values import fixed64
from cdc.positions.vclock import VClock
from cdc.schema.forms import SpaceForm


class _Lean(Envelope):
    """What events with a lean source share in all formats: of a transaction they have only its time."""

    @abstractmethod
    def _begin(self, time_ms: int) -> SharedPieces:
        """Return the pieces of a transaction that the master wrote at this time."""

    def shared(
        self,
        timestamp: float,
        previous_lsn: bytes,  # noqa: ARG002
        place: tuple[int, int],  # noqa: ARG002
        vclock: Mapping[int, int],  # noqa: ARG002
    ) -> SharedPieces:
        """Do as Envelope.shared."""
        return self._begin(round(timestamp * 1e6) // 1000)

    @staticmethod
    def vclock(components: VClock) -> bytes:  # noqa: ARG004
        """Return nothing: the source has no vclock."""
        return b""


class LeanEnvelope(_Lean):
    """Events in JSON."""

    def __init__(self, version: str, prefix: str, keys: KeyPieces | None = None, shard: str = "") -> None:
        super().__init__(version, prefix, keys, shard)
        self._lean_source = b',"source":{%b"ts_ms":' % origin_text(prefix, shard)

    @property
    def compiled_source(self) -> tuple[bytes, bool]:
        """Do as Envelope.compiled_source."""
        return self._lean_source, False

    @staticmethod
    def _text_pieces(form: SpaceForm, server_uuid: str, server_version: str | None) -> tuple[bytes, bytes]:  # noqa: ARG004
        schema = b',"schema_version":%d' % form.schema_version
        if server_version is not None:
            schema += b',"server_version":"%b"' % server_version.encode()
        return b',"table":%b,"lsn":' % encode(form.name), schema

    def with_move(self, schema: bytes, move: Move) -> bytes:
        """Do as Envelope.with_move."""
        return schema + move_text(move)

    def _begin(self, time_ms: int) -> SharedPieces:
        return _LeanText(self._lean_source + b"%d" % time_ms)

    def batch_time(self, now_us: int) -> bytes:
        """Do as Envelope.batch_time."""
        return b',"ts_ms":%d}' % (now_us // 1000)

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:  # noqa: ARG002
        """Do as Envelope.snapshot_pieces."""
        return (
            b"".join((self._lean_source, b"%d" % (now_us // 1000), space.table, b"null", SEQ)),
            b'%b,"snapshot_id":"%d"},"ts_ms":%d}' % (space.schema, snapshot_id, now_us // 1000),
        )


class _LeanText:
    def __init__(self, time: bytes) -> None:
        self._time = time

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:  # noqa: ARG002
        return b"".join((start, self._time, space.table, b"%d" % lsn, SEQ, b"%d" % seq, space.schema, b"}"))


class LeanConnectEnvelope(ConnectEnvelope, LeanEnvelope):
    """Events with a schema block."""


class LeanRegisteredJsonEnvelope(RegisteredJsonEnvelope, LeanEnvelope):
    """Events as JSON whose schema a registry has."""


class LeanAvroEnvelope(_Lean, AvroEnvelope):
    """Events in Avro."""

    def __init__(self, version: str, prefix: str, keys: KeyPieces | None, options: FormatOptions) -> None:
        super().__init__(version, prefix, keys, options)
        self._lean_source = string("tarantool") + string(prefix) + shard_of(options)

    @property
    def compiled_source(self) -> tuple[bytes, bool]:
        """Do as Envelope.compiled_source."""
        return self._lean_source, True

    @staticmethod
    def _source_pieces(form: SpaceForm, server_uuid: str, version: bytes) -> tuple[bytes, bytes]:  # noqa: ARG004
        return string(form.name), long(form.schema_version) + version

    def _begin(self, time_ms: int) -> SharedPieces:
        return _LeanAvro(self._lean_source + long(time_ms))

    def batch_time(self, now_us: int) -> bytes:
        """Do as Envelope.batch_time."""
        return PRESENT + long(now_us // 1000)

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:  # noqa: ARG002
        """Do as Envelope.snapshot_pieces."""
        return (
            self._lean_source + long(now_us // 1000) + space.table + NULL,
            b"".join((space.schema, PRESENT, string(str(snapshot_id)), self.batch_time(now_us))),
        )


class LeanProtoEnvelope(_Lean, ProtoEnvelope):
    """Events in Protobuf."""

    def __init__(self, version: str, prefix: str, keys: KeyPieces | None, options: FormatOptions) -> None:
        super().__init__(version, prefix, keys, options)
        self._lean_source = source_field("name", prefix) + shard_field(options)

    @staticmethod
    def _source_pieces(form: SpaceForm, server_uuid: str, version: bytes) -> tuple[bytes, bytes]:  # noqa: ARG004
        return source_field("table", form.name), source_field("schema_version", form.schema_version) + version

    def _begin(self, time_ms: int) -> SharedPieces:
        return _LeanProto(self._lean_source + source_field("ts_ms", time_ms))

    def batch_time(self, now_us: int) -> bytes:
        """Do as Envelope.batch_time."""
        return lean_time(now_us)

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:  # noqa: ARG002
        """Do as Envelope.snapshot_pieces."""
        before = self._lean_source + source_field("ts_ms", now_us // 1000) + space.table
        after = space.schema + source_field("snapshot_id", str(snapshot_id))
        return source_until_seq(before, after), after + self.batch_time(now_us)


class _LeanProto:
    def __init__(self, time: bytes) -> None:
        self._time = time

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:  # noqa: ARG002
        before = self._time + space.table + source_field("lsn", lsn)
        return b"".join((start, source_until_seq(before, space.schema), fixed64(seq), space.schema))


class _LeanAvro:
    def __init__(self, time: bytes) -> None:
        self._time = time

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:  # noqa: ARG002
        return b"".join((start, self._time, space.table, PRESENT, long(lsn), long(seq), space.schema, NULL))
