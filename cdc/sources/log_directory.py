"""Directories of one instance's .snap and .xlog files (memtx_dir, wal_dir), read as one stream, as a server would have sent it.

    0000….snap      …0343.snap                     rows as of its vclock, without vinyl's
    0000….xlog ───▶ …0343.xlog ───▶ …0345.xlog ⟲   each names its own start (VClock), and its predecessor's start (PrevVClock)

The number in a file name is the sum of the vclock, local changes included, so the numbers order the files. A log's successor is
the file whose PrevVClock equals the log's VClock. If the next file has another PrevVClock, a file is missing. If the next file
has no PrevVClock, the rows before it must lead to its start. A file that its server is still writing can be read, too. Its
incomplete end is read again later, as the server may cut it off after a failed write. Its end marker is also read again, as a
restarted server removes the marker from a log without rows.

Only text headers are cached, as files appear and disappear while the directory is read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
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
    """A .snap or .xlog file. `signature` is the number in its name."""

    path: Path
    signature: int
    meta: FileMeta

    @property
    def vclock(self) -> VClock:
        """Start of a log; contents of a snapshot."""
        return self.meta.vclock


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """Contents of a .snap's system rows: replica set, and names, by id, of replicated vinyl spaces (their rows aren't in it)."""

    replicaset_uuid: UUID | None
    vinyl: dict[int, str]


class LogDirectory:
    """Directory, or several, with the files of one instance."""

    def __init__(self, *paths: Path, block_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._paths = paths
        self.path = " and ".join(map(str, paths))
        """The directories, as messages name them."""
        self._block_bytes_max = block_bytes_max
        self._known: dict[Path, LogFile] = {}

    def logs(self) -> list[LogFile]:
        """Return the .xlog files in order. Raises ConfigurationError or LogFileError."""
        return self._files("xlog")

    def snapshots(self) -> list[LogFile]:
        """Return the complete .snap files, newest first. Raises ConfigurationError or LogFileError."""
        return [file for file in reversed(self._files("snap")) if self._has_end(file)]

    def chain(self) -> list[LogFile]:
        """Return the newest logs, as far back as each one directly follows its predecessor."""
        logs = self.logs()
        first = len(logs) - 1
        while first > 0 and follows(logs[first], logs[first - 1]):
            first -= 1
        return logs[max(first, 0) :]

    def head(self, snapshot: LogFile) -> SnapshotHead:
        """Read the system rows of a snapshot. Raises LogFileError."""
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
        """Yield a snapshot's rows as a server would have sent them. Raises LogFileError, also if the file is incomplete."""
        decoder = self.new_decoder()
        with name_file_in_errors(snapshot.path), snapshot.path.open("rb", buffering=0) as stream:
            while data := stream.read(READ_BYTES):
                for frames in decoder.feed(data):
                    yield snapshot_rows(frames)
            decoder.end()
            if not decoder.is_closed:
                raise LogFileError("the snapshot is incomplete: it has no end marker", offset=decoder.offset, hint=DAMAGE_HINT)

    def new_decoder(self) -> LogFileDecoder:
        """Return a decoder for one of the files."""
        return LogFileDecoder(block_bytes_max=self._block_bytes_max)

    def _files(self, extension: str) -> list[LogFile]:
        found: dict[str, Path] = {}
        for directory in self._paths:
            for path in _named_files(directory):
                if not _is_same(found.setdefault(path.name, path), path):
                    raise ConfigurationError(
                        f"{path} and {found[path.name]} have the same name, so one is a copy",
                        "Leave out the directory with the copies, or move them away.",
                    )
        self._known = {path: file for path in found.values() if (file := self._known.get(path) or self._read(path)) is not None}
        instances = {file.meta.instance_uuid for file in self._known.values()}
        if len(instances) > 1:
            shown = " and ".join(sorted(str(instance) for instance in instances)[:2])
            raise ConfigurationError(
                f"{self.path} has files of several instances: {shown}", "Each instance's files go into a directory of their own."
            )
        files = [file for file in self._known.values() if file.path.suffix == f".{extension}"]
        return sorted(files, key=lambda file: file.signature)

    def _read(self, path: Path) -> LogFile | None:
        """Read a file's text header. Returns None if the file has been removed."""
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


def _named_files(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except OSError as error:
        raise ConfigurationError(f"{directory} can't be read: {error.strerror}", "Name a directory of .xlog files.") from error


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two paths are one file: a directory may be named twice, also by a link. A removed file is no copy."""
    if one == other:
        return True
    with contextlib.suppress(FileNotFoundError):
        return one.samefile(other)
    return True


@contextlib.contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Add the file's path to LogFileErrors, and turn errors of the system into ConfigurationError."""
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
    """Return whether no log is missing between the two."""
    return later.meta.previous_vclock in (None, earlier.vclock)


def join(*vclocks: VClock) -> VClock:
    """Return the vclock with the highest lsn of each origin."""
    return VClock({origin: max(vclock[origin] for vclock in vclocks) for vclock in vclocks for origin in vclock})
