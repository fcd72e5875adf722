"""`tarantool-cdc verify`: compares the state store with the master's rows, without changing either.

store at S ──▶ Images ◀── connection B: the stream from S up to V exactly, kept over the store and never written
                 │
                 ▼ compared by key, as events show the rows
    connection A: FETCH_SNAPSHOT; its first answer contains V, its rows are read once B has reached V

The snapshot's keys are written to a separate store on disk as they arrive, so memory stays constant. If a space has more
rows here than the snapshot contained, that store shows which ones are extra.

The daemon must be stopped: only one process at a time can open its store.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cdc.commands import Say
from cdc.config import Config
from cdc.daemon.start import options_of
from cdc.errors import (
    ConfigurationError,
    ConnectionLostError,
    EncodingError,
    PositionError,
    ProtocolError,
    SchemaError,
    StateError,
    UnkeyableError,
)
from cdc.events.columns import CONCEALED, ColumnRules
from cdc.events.row_encoder import RowEncoder
from cdc.images.image_events import VINYL_CHECKS_SINCE
from cdc.images.overlay import Images
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames, body_values, tuple_values
from cdc.protocol.constants import Key
from cdc.protocol.failure import XlogGapError
from cdc.protocol.session import Heartbeat, SnapshotStarted, StreamRows, Subscribed
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import KeyCodec
from cdc.schema.tracker import TRACKED_SPACES, SchemaTracker
from cdc.sources.acknowledger import Acknowledger
from cdc.sources.connection import Connection
from cdc.sources.contents import SNAPSHOT_TIMEOUT_SECONDS, rows
from cdc.sources.handshake import expect, greet, vote
from cdc.sources.replica_set import replicaset_uuid
from cdc.store.files import has_data, translate_lmdb_errors
from cdc.store.spool import FileSpool
from cdc.store.store import StateStore
from cdc.store.writer import StateWriter
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.options import Surroundings
from cdc.stream.moves.held import HELD_NUMBER
from cdc.stream.pipeline import Pipeline
from cdc.upstream import resume
from cdc.upstream.identity import instance_uuid

STREAM_TIMEOUT_SECONDS: Final = 60.0
"""Maximum time, in seconds, without any data from the stream before it has reached V."""
STANDSTILL_SECONDS: Final = 5.0
"""Maximum time, in seconds, without rows while the master sends heartbeats. A master sends the rows up to V without delay, so the
missing ones wait for something."""
ACK_SECONDS: Final = 0.5

_SEEN: Final = b"\x90"
"""Placeholder for the tuple of a key that the snapshot contains."""

MERGED: Final = (
    "before 2.6.1 a server merges UPSERTs of one key of a vinyl space when it writes them to disk, "
    "and only the server knows the result"
)
DOUBTFUL: Final = "a row of this key couldn't be applied and was skipped"
KEYLESS: Final = "the master's row has no valid primary key, so the store can't have it"
NOTATIONS: Final = (
    "the keys of this vinyl space can be written in several notations (decimal 1.5 and 1.50), and on disk vinyl finds a row only "
    "by the one in which it was written; if this key was written in several, the server's answers change with a dump"
)
"""Known reasons for differences."""


@dataclass(slots=True)
class Verification:
    """Result: the number of compared rows, the differences by kind, and the spaces that couldn't be compared."""

    vclock: VClock
    row_count: int = 0
    differences: dict[str, int] = field(default_factory=lambda: {"missing": 0, "extra": 0, "different": 0})
    uncompared: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not any(self.differences.values())

    @property
    def sentence(self) -> str:
        """The result for people."""
        found = ", ".join(f"{count} {kind}" for kind, count in self.differences.items() if count)
        outcome = f"the state store differs from the master: {found}" if found else "the state store has the master's rows"
        text = f"{outcome}; {self.row_count} rows were compared at {self.vclock}."
        if self.uncompared:
            text += " Not compared: " + "; ".join(f"{name}: {reason}" for name, reason in self.uncompared.items()) + "."
        for reason, count in self.reasons.items():
            text += f" Of these {count}: {reason}."
        if sum(self.differences.values()) > self.reasons.get(KEYLESS, 0):
            text += " Remove the directory images in state.path, and start the daemon once with --rebuild-state."
        return text


def verify(config: Config, say: Say) -> Verification:
    """Compare, and report each difference as a JSON line. Raises CdcError if there is nothing to compare, or no way to."""
    path = config.state.path / "images"
    images = config.state.images
    if images != "full":
        raise ConfigurationError(f'state.images is "{images}": there is no state store to verify', 'It is kept with "full".')
    if not has_data(path):
        # Kafka isn't asked whether there was a store: `verify` needs only the store and the master.
        raise StateError(
            f"there is no state store in {path} (state.path)",
            "If it is somewhere else, correct state.path. If the daemon has never run, its first run makes it. If it is lost, "
            "start the daemon once with --rebuild-state.",
        )
    try:
        writer = StateWriter(path, config.name, 0, f"`verify` of {config.name!r}")
    except StateError as error:
        if "in use" not in error.message:
            raise
        raise StateError(error.message, "Stop that one, verify, and start it again if it was the daemon.") from error
    try:
        if next(writer.store.scan(HELD_NUMBER), None) is not None:
            raise StateError(
                "rows of buckets wait for the daemon of another shard, and aren't rows of their spaces in the store yet",
                "Verify again once no bucket waits: `tarantool-cdc status` shows that.",
            )
        with translate_lmdb_errors(path), tempfile.TemporaryDirectory(prefix="verify-", dir=config.state.path) as directory:
            try:
                result = _Verifier(config, writer, Path(directory), say).run()
            except ProtocolError as error:
                if config.columns.rules:
                    error.conceal()
                raise
            writer.remove_unused()
            return result
    finally:
        writer.close()


class _Verifier:
    def __init__(self, config: Config, writer: StateWriter, directory: Path, say: Say) -> None:
        self._config = config
        self._writer = writer
        self._directory = directory
        self._say = say
        self._stored = writer.checkpoint()

    def run(self) -> Verification:
        config, position = self._config, self._stored.position
        if position is None or position.snapshot is None or not position.snapshot.is_complete:
            raise StateError(
                "the state store has no complete snapshot, so there is nothing to compare", "Let the daemon take one."
            )
        # The daemon's own UUID, which no other process uses while its store is ours: a master from 3.3 on keeps logs for each
        # UUID.
        member, uuid = config.source.members()[0], instance_uuid(config.name)
        contents = greet(member, uuid, frame_bytes_max=config.source.frame_bytes_max)
        try:
            ballot = vote(contents)
            resume.check_replicaset(position, replicaset_uuid(contents))
            self._check_served(ballot.gc_vclock, position.vclock)
            contents.session.fetch_snapshot(keeps_logs=False)
            vclock = expect(contents, SnapshotStarted, SNAPSHOT_TIMEOUT_SECONDS).vclock
            pipeline, uncompared = self._pipeline_at(vclock, contents.session.greeting.version)
            assert pipeline.images is not None
            with _Seen(self._directory / "seen") as seen:
                result = Verification(vclock, uncompared=uncompared)
                forms = pipeline.published_forms()
                comparison = _Comparison(config, pipeline.images, forms, seen, self._say, result)
                for frames in rows(contents):
                    comparison.compare(frames)
                return comparison.finish()
        finally:
            contents.close()

    def _check_served(self, gc_vclock: VClock, position: VClock) -> None:
        missing = position.lacking(gc_vclock)
        if missing:
            raise PositionError(
                f"the server no longer has the logs after the state store's position: it keeps them from {gc_vclock}, the store "
                f"is at {position}",
                "Start the daemon: it heals the gap by a snapshot that compares with the store.",
            )

    def _pipeline_at(self, vclock: VClock, version: tuple[int, ...]) -> tuple[Pipeline, dict[str, str]]:
        """Return a pipeline with the store's rows and the stream's changes up to `vclock`, and the spaces not in the store."""
        position, config = self._stored.position, self._config
        assert position is not None
        behind = vclock.lacking(position.vclock)
        if behind:
            raise PositionError(
                f"the server is at {vclock} and lacks changes that the state store has, which is at {position.vclock}",
                "Name a member of the replica set that has them first in source.uris.",
            )
        images = self._writer.begin(self._stored.published_forms(), version)
        member = config.source.members()[0]
        stream = greet(member, instance_uuid(config.name), frame_bytes_max=config.source.frame_bytes_max)
        try:
            resume.check_replicaset(position, replicaset_uuid(stream))
            pipeline = Pipeline(
                Surroundings(
                    # A row that can't be encoded has changed the images all the same, and nothing is published here.
                    replace(options_of(config), on_error="dlq", on_image_error="dlq"),
                    stream.session.greeting.uuid,
                    version,
                    lambda: FileSpool(self._directory),
                ),
                position,
                list(self._stored.spaces.values()),
                images=images,
                catch_up_to=None if position.vclock == vclock else replace(position, vclock=vclock),
            )
            uncompared = {
                form.name: "it is newly published since the daemon's last run"
                for form in pipeline.published_forms()
                if not form.schema_version
            }
            try:
                if pipeline.is_catching_up:
                    self._catch_up(stream, pipeline)
            finally:
                pipeline.close()
        except XlogGapError as error:
            raise PositionError(
                f"the server doesn't send the logs after the state store's position {position.vclock}: {error.message}",
                "Start the daemon: it heals the gap by a snapshot that compares with the store.",
            ) from error
        finally:
            stream.close()
        return pipeline, uncompared

    def _catch_up(self, stream: Connection, pipeline: Pipeline) -> None:
        """Feed the stream's rows to the pipeline until the images have reached its target position, and no further."""
        position = pipeline.position
        assert position.replicaset_uuid is not None
        # A server knows the daemon's UUID as a member's or not at all, and answers accordingly.
        is_anonymous = self._config.source.mode == "anonymous"
        stream.session.subscribe(position.replicaset_uuid, position.vclock, is_anonymous=is_anonymous)
        resume.check_replicaset(position, expect(stream, Subscribed).replicaset_uuid)

        def acknowledge() -> None:
            """Report to the server the position that the store has."""
            stream.send_bytes(stream.session.acknowledgement(position.vclock))

        with closing(Acknowledger(acknowledge, ACK_SECONDS)) as acknowledger:
            self._follow(stream, pipeline, acknowledger)

    def _follow(self, stream: Connection, pipeline: Pipeline, acknowledger: Acknowledger) -> None:
        assert pipeline.images is not None
        last_rows = time.monotonic()
        heard_since_rows = False
        while True:
            acknowledger.check()
            for event in stream.receive(ACK_SECONDS):
                batches: Iterator[Batch] = iter(())
                if isinstance(event, Heartbeat):
                    heard_since_rows = True
                    batches = pipeline.heartbeat(0)
                if isinstance(event, StreamRows):
                    last_rows, heard_since_rows = time.monotonic(), False
                    batches = pipeline.feed(event.frames, 0)
                for _ in batches:
                    pipeline.images.take()
                    if not pipeline.is_catching_up:
                        return  # later rows aren't needed
            if time.monotonic() - last_rows > (STANDSTILL_SECONDS if heard_since_rows else STREAM_TIMEOUT_SECONDS):
                raise _no_progress_error(stream.address, pipeline)


def _no_progress_error(address: str, pipeline: Pipeline) -> ConnectionLostError:
    waiting, position = pipeline.limbo.transaction_count, pipeline.position.vclock
    if waiting:
        return ConnectionLostError(
            f"the stream of {address} stays at {position}: {waiting} transactions wait for their quorum",
            "Verify again once the replica set has confirmed or rolled them back.",
        )
    if pipeline.open_byte_count:
        return ConnectionLostError(
            f"the stream of {address} stays at {position}, in the middle of a transaction",
            "Verify again; should it stay there, look into the server's log.",
        )
    return ConnectionLostError(
        f"the stream of {address} stays at {position}, and doesn't deliver the changes that the server's snapshot contains",
        "Verify again, or name another member of the replica set first in source.uris.",
    )


class _Seen:
    """Keys that the snapshot contains, on disk."""

    def __init__(self, path: Path) -> None:
        self._store = StateStore(path)

    def __enter__(self) -> _Seen:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.destroy()

    def add(self, keys: list[bytes]) -> None:
        self._store.write([(key, _SEEN) for key in keys], ())

    def has(self, key: bytes) -> bool:
        return self._store.get(key) is not None

    def count(self, space_id: int) -> int:
        return self._store.count(space_id)


class _Space:
    """Access to one space's rows, and their display."""

    def __init__(self, form: SpaceForm, number: int, columns: ColumnRules) -> None:
        """Keys begin with `number`; rows are shown by the rules for columns. Raises UnkeyableError."""
        self.name = form.name
        self.is_vinyl = form.is_vinyl
        self.has_notations = form.has_notations
        self.key_of = KeyCodec(form, number).of_tuple
        self._encoder = RowEncoder(form)
        self._shown = RowEncoder(columns.shown(form))
        self._is_concealed = columns.conceals(form)

    def line(self, what: str, ours: bytes | None, theirs: bytes | None, reason: str | None) -> str:
        tuple_ = ours if theirs is None else theirs
        assert tuple_ is not None
        found: dict[str, Any] = {
            "space": self.name,
            "key": self._key(tuple_),
            "what": what,
            "ours": None if ours is None else self._row(ours),
            "theirs": None if theirs is None else self._row(theirs),
        }
        if reason is not None:
            found["reason"] = reason
        return json.dumps(found, ensure_ascii=False)

    def shows_alike(self, ours: bytes, theirs: bytes) -> bool:
        """Return whether two tuples are the same in events: one value may be encoded in several ways (a double, a float)."""
        try:
            one, other = (self._encoder.rows[len(values)](values) for values in map(tuple_values, (ours, theirs)))
        except (EncodingError, SchemaError):
            return False
        return one == other

    def _key(self, tuple_: bytes) -> Any:
        try:
            return json.loads(self._encoder.key_of(tuple_values(tuple_)))
        except (EncodingError, SchemaError):
            return self._raw(tuple_)

    def _row(self, tuple_: bytes) -> Any:
        values = tuple_values(tuple_)
        try:
            return json.loads(self._shown.rows[len(values)](values))
        except (EncodingError, SchemaError):
            return self._raw(tuple_)

    def _raw(self, tuple_: bytes) -> dict[str, str]:
        return {"concealed": f"the row {CONCEALED}"} if self._is_concealed else {"msgpack": tuple_.hex()}


class _Comparison:
    """Comparison of the snapshot's rows with the images."""

    def __init__(
        self,
        config: Config,
        images: Images,
        ours: list[SpaceForm],
        seen: _Seen,
        say: Say,
        result: Verification,
    ) -> None:
        self.result = result
        options = options_of(config)
        self._is_published, self._columns = options.space_filter(), options.columns()
        self._images = images
        self._seen = seen
        self._say = say
        self._schema = SchemaTracker()
        self._ours = {form.space_id: form for form in ours}
        self._spaces: dict[int, _Space | None] = {}
        # By space: the number of the snapshot's keys that the images have, too.
        self._found: dict[int, int] = {}
        # Rows of system spaces until their forms are known; None from then on.
        self._early: list[tuple[int, Sequence[Any], bytes]] | None = []

    def compare(self, frames: Frames) -> None:
        """Compare rows of the snapshot. Raises SchemaError or PositionError."""
        keys: list[bytes] = []
        for header, body, frame in zip(frames.headers, frames.bodies, frames.raws(), strict=True):
            space_id, tuple_ = body[Key.SPACE_ID], body[Key.TUPLE]
            if self._early is not None:
                if space_id <= SYSTEM_SPACE_MAX:
                    if space_id in TRACKED_SPACES:
                        self._schema.apply(header[Key.REQUEST_TYPE], body)
                    self._early.append((space_id, tuple_, frame))
                    continue
                self._compare_early(keys)
            self._compare(space_id, tuple_, frame, keys)
        self._seen.add(keys)

    def finish(self) -> Verification:
        """Finish after the snapshot's last row: further rows of the images are extra."""
        keys: list[bytes] = []
        self._compare_early(keys)
        self._seen.add(keys)
        for space_id in sorted({*self._ours, *(form.space_id for form in self._schema.forms())}):
            space = self._space(space_id)
            if space is None:
                continue
            count = sum(1 for _ in self._images.scan(space_id))
            if count == self._found.get(space_id, 0):
                continue
            for key, tuple_ in self._images.scan(space_id):
                if not self._seen.has(key):
                    self._differ(space, key, "extra", tuple_, None)
        return self.result

    def _compare_early(self, keys: list[bytes]) -> None:
        early, self._early = self._early, None
        for space_id, tuple_, frame in early or ():
            self._compare(space_id, tuple_, frame, keys)

    def _compare(self, space_id: int, tuple_: Sequence[Any], frame: bytes, keys: list[bytes]) -> None:
        space = self._space(space_id)
        if space is None:
            return
        self.result.row_count += 1
        try:
            key = space.key_of(tuple_)
        except SchemaError:
            self._differ(space, None, "missing", None, body_values(frame)[Key.TUPLE])
            return
        keys.append(key)
        ours = self._images.current(key)
        if ours is None:
            self._differ(space, key, "missing", None, body_values(frame)[Key.TUPLE])
            return
        self._found[space_id] = self._found.get(space_id, 0) + 1
        theirs = body_values(frame)[Key.TUPLE]
        if ours != theirs and not space.shows_alike(ours, theirs):
            self._differ(space, key, "different", ours, theirs)

    def _space(self, space_id: int) -> _Space | None:
        """Return how a space is compared; None if it isn't."""
        if space_id not in self._spaces:
            self._spaces[space_id] = self._new_space(space_id)
        return self._spaces[space_id]

    def _new_space(self, space_id: int) -> _Space | None:
        form = self._schema.form(space_id) if space_id in self._schema else self._ours[space_id]
        if not form.is_replicated or not self._is_published(space_id, form.name) or form.name in self.result.uncompared:
            return None
        try:
            return _Space(form, self._images.number(space_id), self._columns)
        except UnkeyableError as error:
            self.result.uncompared[form.name] = error.message
            return None

    def _differ(self, space: _Space, key: bytes | None, what: str, ours: bytes | None, theirs: bytes | None) -> None:
        reason = self._reason(space, key, ours, theirs)
        self.result.differences[what] += 1
        if reason is not None:
            self.result.reasons[reason] = self.result.reasons.get(reason, 0) + 1
        self._say(space.line(what, ours, theirs, reason))

    def _reason(self, space: _Space, key: bytes | None, ours: bytes | None, theirs: bytes | None) -> str | None:
        """Return the known reason for a difference, if there is one."""
        if key is None:
            return KEYLESS
        if key in self._images.doubtful:
            return DOUBTFUL
        is_merged = space.is_vinyl and self._images.version < VINYL_CHECKS_SINCE and ours is not None and theirs is not None
        return MERGED if is_merged else NOTATIONS if space.has_notations else None
