"""A directory of .snap and .xlog files as one stream, as a server would have sent it.

    0000….snap      …0343.snap                     rows as of its vclock, without vinyl's
    0000….xlog ───▶ …0343.xlog ───▶ …0345.xlog ⟲   each says where it begins (VClock), and where the one before it (PrevVClock)

The number in a name is the sum of the vclock, local changes included, so numbers order the files. A log is followed by the one
whose PrevVClock is its VClock; where the names differ, a file is missing. Where PrevVClock isn't said, the rows before must lead
to it. A file that its server is writing to may be read too: what isn't whole in it is looked at again, as its server may cut
it off after a failed write, and an end marker too, which a server that starts again takes away from a log without rows.

Nothing here is cached but text headers: files come and go while they are read.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from cdc import schema
from cdc.errors import ConfigurationError, LogFileError, PositionError
from cdc.protocol.ballot import Ballot
from cdc.protocol.codec import FRAME_BYTES_MAX, Frames
from cdc.protocol.constants import Key
from cdc.protocol.failure import XlogGapError
from cdc.protocol.log_file import DAMAGE_HINT, END_MARKER, META_BYTES_MAX, FileMeta, LogFileDecoder, parse_meta
from cdc.protocol.relayed import Relay, snapshot_rows
from cdc.vclock import VClock

READ_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"(\d{1,20})\.(snap|xlog)")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file. `signature` is the number in its name."""

    path: Path
    signature: int
    meta: FileMeta

    @property
    def vclock(self) -> VClock:
        """Where it begins; a snapshot: what it holds."""
        return self.meta.vclock


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """What a .snap's system rows say: the replica set, and the names of replicated vinyl spaces, by id. Their rows it lacks."""

    replicaset_uuid: UUID | None
    vinyl: dict[int, str]


class LogDirectory:
    """The files of one instance."""

    def __init__(self, path: Path, *, block_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.path = path
        self._block_bytes_max = block_bytes_max
        self._known: dict[str, LogFile] = {}

    def logs(self) -> list[LogFile]:
        """The .xlog files there are, in order. Raises ConfigurationError or LogFileError."""
        return self._files("xlog")

    def snapshots(self) -> list[LogFile]:
        """The .snap files that are whole, the newest first. Raises ConfigurationError or LogFileError."""
        return [file for file in reversed(self._files("snap")) if self._has_end(file)]

    def chain(self) -> list[LogFile]:
        """The newest logs, as far back as each follows upon the one before."""
        logs = self.logs()
        first = len(logs) - 1
        while first > 0 and _follows(logs[first], logs[first - 1]):
            first -= 1
        return logs[max(first, 0) :]

    def ballot(self, position: VClock | None = None) -> Ballot:
        """What a server with these files would say to VOTE. How far they lead is looked up as far as `position` needs it.

        Raises ConfigurationError if there are no files, and LogFileError.
        """
        chain, snapshots = self.chain(), self.snapshots()
        if not chain and not snapshots:
            raise ConfigurationError(
                f"{self.path} has no .snap or .xlog files", "Name a server's wal_dir; the .snap files must be in it too."
            )
        end = join(*(file.vclock for file in chain[-1:] + snapshots[:1]))
        if chain and position is not None and not end.covers(position):
            stream = LogStream(self, chain[-1].vclock)
            for _ in stream.rows():
                pass
            end = join(end, stream.vclock)
        first = chain[0].vclock if chain else end
        return Ballot(vclock=end, gc_vclock=first, is_read_only=True, is_ready=True)

    def head(self, snapshot: LogFile) -> SnapshotHead:
        """What the system rows of a snapshot say. Raises LogFileError."""
        replicaset_uuid = None
        vinyl: dict[int, str] = {}
        for frames in self.snapshot_rows(snapshot):
            for body in frames.bodies:
                replicaset_uuid = replicaset_uuid or schema.replicaset_uuid_in(body)
                match body.get(Key.SPACE_ID), body.get(Key.TUPLE):
                    case int(space_id), _ if space_id > schema.SYSTEM_SPACE_MAX:
                        return SnapshotHead(replicaset_uuid, vinyl)
                    case schema.SPACE_SPACE, [int(space_id), _, str(name), "vinyl", _, dict(flags), *_] if not flags.get(
                        "group_id"
                    ):
                        vinyl[space_id] = name
        return SnapshotHead(replicaset_uuid, vinyl)

    def snapshot_rows(self, snapshot: LogFile) -> Iterator[Frames]:
        """The rows of a snapshot as a server would have sent them. Raises LogFileError, also if it isn't whole."""
        decoder = self.new_decoder()
        with told(snapshot.path), snapshot.path.open("rb", buffering=0) as stream:
            while data := stream.read(READ_BYTES):
                for frames in decoder.feed(data):
                    yield snapshot_rows(frames)
            decoder.end()
            if not decoder.is_closed:
                raise LogFileError("the snapshot isn't whole: it has no end marker", offset=decoder.offset, hint=DAMAGE_HINT)

    def new_decoder(self) -> LogFileDecoder:
        """For one of the files."""
        return LogFileDecoder(block_bytes_max=self._block_bytes_max)

    def _files(self, extension: str) -> list[LogFile]:
        try:
            names = [path.name for path in self.path.iterdir() if _NAME.fullmatch(path.name)]
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} can't be read: {error.strerror}", "Name a directory of .xlog files."
            ) from error
        self._known = {name: file for name in names if (file := self._known.get(name) or self._read(name)) is not None}
        instances = {file.meta.instance_uuid for file in self._known.values()}
        if len(instances) > 1:
            shown = " and ".join(sorted(str(instance) for instance in instances)[:2])
            raise ConfigurationError(
                f"{self.path} has files of several instances: {shown}", "Each instance's files go into a directory of their own."
            )
        files = [file for file in self._known.values() if file.path.suffix == f".{extension}"]
        return sorted(files, key=lambda file: file.signature)

    def _read(self, name: str) -> LogFile | None:
        """A file with its text header; None if it is gone."""
        path = self.path / name
        with told(path):
            try:
                with path.open("rb") as stream:
                    found = parse_meta(stream.read(META_BYTES_MAX))
            except FileNotFoundError:
                return None
            if found is None:
                raise LogFileError("the file ends within its text header", offset=0, hint=DAMAGE_HINT)
            meta, _ = found
            if meta.is_snapshot != (path.suffix == ".snap"):
                raise LogFileError(f"the file is of kind {meta.kind}, its name says otherwise", offset=0, hint="Rename it.")
            return LogFile(path, int(path.stem), meta)

    def _has_end(self, file: LogFile) -> bool:
        with told(file.path), file.path.open("rb") as stream:
            stream.seek(-len(END_MARKER), 2)
            return stream.read() == END_MARKER


class LogStream:
    """The rows of a directory's logs behind a position, in order, as a server would have sent them.

    The first rows may lie before the position: they are in a file with rows behind it.
    """

    def __init__(
        self,
        directory: LogDirectory,
        start: VClock,
        *,
        follows: bool = False,
        excluded: frozenset[int] = frozenset(),
    ) -> None:
        """`follows`: the newest file is still written to, and others will come. Rows of origins in `excluded` are left out."""
        self._directory = directory
        self._excluded = excluded
        self._start = start
        self._follows = follows
        self._lsns: dict[int, int] = {}
        self._passed = start
        self.file: LogFile | None = None
        """The one that is being read."""
        self.read_byte_count = 0
        """Of all files so far."""
        self.tail_bytes: int | None = None
        """Of the last file that was left: bytes of the block that it lacks the rest of; None if it was closed."""

    @property
    def vclock(self) -> VClock:
        """How far the rows have come."""
        return join(self._passed, VClock(self._lsns))

    def rows(self) -> Iterator[Frames | None]:
        """The rows. None: there are no more at this moment, come again later. Without `follows` it ends instead.

        Raises LogFileError for damage, XlogGapError or PositionError if a file is missing, ConfigurationError.
        """
        self.file = self._first()
        while self.file is None and self._follows:
            yield None
            self.file = self._first()
        while self.file is not None:
            following = yield from self._rows_of(self.file)
            if following is not None:
                self._check(self.file, following)
                self._passed = join(self.vclock, following.vclock)
            self.file = following

    def _first(self) -> LogFile | None:
        logs = self._directory.logs()
        before = [log for log in logs if self._start.covers(log.vclock)]
        if logs and not before:
            raise XlogGapError(
                f"{self._directory.path} has no .xlog that leads on from {self._start}: the first one begins at {logs[0].vclock}",
                'source.on_gap = "resnapshot" starts again from a snapshot.',
            )
        return before[-1] if before else None

    def _rows_of(self, file: LogFile) -> Generator[Frames | None, None, LogFile | None]:
        """One file's rows; returns the file behind it."""
        decoder, relay = self._directory.new_decoder(), Relay(self._excluded)
        with told(file.path), file.path.open("rb", buffering=0) as stream:
            while True:
                # Looked for before the rest is read: once there is another, this one has got its last row.
                following = next((log for log in self._directory.logs() if log.signature > file.signature), None)
                while data := stream.read(READ_BYTES):
                    self.read_byte_count += len(data)
                    for decoded in decoder.feed(data):
                        frames = relay.rows(decoded)
                        self._advance(frames, decoder.offset)
                        yield frames
                if following is not None or not self._follows:
                    break
                yield None
                stream.seek(decoder.rewind())
            decoder.end()
        self.tail_bytes = None if decoder.is_closed else decoder.tail_bytes
        return following

    def _advance(self, frames: Frames, offset: int) -> None:
        try:
            self._lsns.update([(header[Key.REPLICA_ID], header[Key.LSN]) for header in frames.headers])
            VClock(self._lsns)
        except (KeyError, TypeError, ValueError) as error:
            raise LogFileError(
                f"a row has no origin and lsn that can be followed ({error})", offset=offset, hint=DAMAGE_HINT
            ) from error

    def _check(self, file: LogFile, following: LogFile) -> None:
        """Raise if a file is missing between two."""
        previous = following.meta.previous_vclock
        report = (
            f"an .xlog is missing between {file.path.name}, which begins at {file.vclock} and leads to {self.vclock}, "
            f"and {following.path.name}, which begins at {following.vclock}"
        )
        if previous is None:
            if not self.vclock.covers(following.vclock):
                raise PositionError(report, "Put it into the directory.")
        elif previous != file.vclock:
            raise XlogGapError(f"{report} behind one that begins at {previous}", "Put it into the directory.")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Errors about a file name it; what the system refuses becomes a ConfigurationError."""
    try:
        yield
    except LogFileError as error:
        if not error.file:
            error.file = str(path)
            error.message = f"{path}: {error.message}"
        raise
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror or error}") from error


def _follows(later: LogFile, earlier: LogFile) -> bool:
    return later.meta.previous_vclock in (None, earlier.vclock)


def join(*vclocks: VClock) -> VClock:
    """What at least one of them has seen."""
    return VClock({origin: max(vclock[origin] for vclock in vclocks) for vclock in vclocks for origin in vclock})
