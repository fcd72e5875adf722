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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from cdc.errors import ConfigurationError, LogFileError
from cdc.positions.vclock import VClock
from cdc.protocol import system_spaces
from cdc.protocol.codec import FRAME_BYTES_MAX, Frames
from cdc.protocol.constants import Key
from cdc.protocol.log_file import DAMAGE_HINT, END_MARKER, META_BYTES_MAX, FileMeta, LogFileDecoder, parse_meta
from cdc.protocol.relay_filter import snapshot_rows

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
        while first > 0 and follows(logs[first], logs[first - 1]):
            first -= 1
        return logs[max(first, 0) :]

    def head(self, snapshot: LogFile) -> SnapshotHead:
        """What the system rows of a snapshot say. Raises LogFileError."""
        replicaset_uuid = None
        vinyl: dict[int, str] = {}
        for frames in self.snapshot_rows(snapshot):
            for body in frames.bodies:
                replicaset_uuid = replicaset_uuid or system_spaces.replicaset_uuid_in(body)
                match body.get(Key.SPACE_ID), body.get(Key.TUPLE):
                    case int(space_id), _ if space_id > system_spaces.SYSTEM_SPACE_MAX:
                        return SnapshotHead(replicaset_uuid, vinyl)
                    case system_spaces.SPACE_SPACE, [int(space_id), _, str(name), "vinyl", _, dict(flags), *_] if not flags.get(
                        "group_id"
                    ):
                        vinyl[space_id] = name
        return SnapshotHead(replicaset_uuid, vinyl)

    def snapshot_rows(self, snapshot: LogFile) -> Iterator[Frames]:
        """The rows of a snapshot as a server would have sent them. Raises LogFileError, also if it isn't whole."""
        decoder = self.new_decoder()
        with name_file_in_errors(snapshot.path), snapshot.path.open("rb", buffering=0) as stream:
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
        with name_file_in_errors(path):
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
        with name_file_in_errors(file.path), file.path.open("rb") as stream:
            stream.seek(-len(END_MARKER), 2)
            return stream.read() == END_MARKER


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
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


def follows(later: LogFile, earlier: LogFile) -> bool:
    """Whether no log lies between the two."""
    return later.meta.previous_vclock in (None, earlier.vclock)


def join(*vclocks: VClock) -> VClock:
    """What at least one of them has seen."""
    return VClock({origin: max(vclock[origin] for vclock in vclocks) for vclock in vclocks for origin in vclock})
