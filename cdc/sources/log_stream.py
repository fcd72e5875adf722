"""Stream of the rows in a directory's .xlog files, in the order in which a master would send them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from cdc.errors import ConfigurationError, LogFileError, PositionError
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.protocol.constants import Key
from cdc.protocol.failure import XlogGapError
from cdc.protocol.log_file import DAMAGE_HINT
from cdc.protocol.relay_filter import Relay
from cdc.sources.log_directory import READ_BYTES, LogDirectory, LogFile, join, name_file_in_errors
from cdc.upstream import resume


class LogStream:
    """Stream of the rows after a position, in order, as a server would have sent them.

    The first rows may be older than the position, as the stream begins at the start of a file.
    """

    def __init__(
        self,
        directory: LogDirectory,
        start: VClock,
        *,
        follows: bool = False,
        excluded: frozenset[int] = frozenset(),
    ) -> None:
        """Begin at `start`, and leave out rows of origins in `excluded`.

        `follows`: a server still writes to the newest file, and will add files.
        """
        self._directory = directory
        self._excluded = excluded
        self._start = start
        self.follows = follows
        self._lsns: dict[int, int] = {}
        self._passed = start
        self._end = 0
        self.file: LogFile | None = None
        """File that is being read."""
        self.read_byte_count = 0
        """Number of bytes read from all files so far."""
        self.tail_bytes: int | None = None
        """Number of bytes in the incomplete last block of the last finished file; None if that file has an end marker."""

    @property
    def vclock(self) -> VClock:
        """Position of the rows read so far."""
        return join(self._passed, VClock(self._lsns))

    def rows(self) -> Iterator[Frames | None]:
        """Yield the rows. With `follows`, None means that there are no more rows yet; without it, the iterator ends.

        Raises LogFileError for damage, XlogGapError or PositionError if a file is missing, and ConfigurationError.
        """
        self.file = self._first()
        while self.file is None and self.follows:
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
                f"{self._directory.path} has no .xlog that continues from {self._start}: the first begins at {logs[0].vclock}",
                'source.on_gap = "resnapshot" starts again from a snapshot.',
            )
        return before[-1] if before else None

    def _rows_of(self, file: LogFile) -> Generator[Frames | None, None, LogFile | None]:
        """Yield one file's rows, and return the next file."""
        decoder, relay = self._directory.new_decoder(), Relay(self._excluded)
        with name_file_in_errors(file.path), file.path.open("rb", buffering=0) as stream:
            while True:
                # The next file is looked up before the rest of this one is read: once it exists, this file is finished.
                following = next((log for log in self._directory.logs() if log.signature > file.signature), None)
                while data := stream.read(READ_BYTES):
                    self.read_byte_count += len(data)
                    for decoded in decoder.feed(data):
                        frames = relay.rows(decoded)
                        self._advance(frames, decoder.offset)
                        yield frames
                if following is not None or not self.follows:
                    break
                yield None
                stream.seek(decoder.rewind())
            decoder.end()
        self.tail_bytes, self._end = None if decoder.is_closed else decoder.tail_bytes, decoder.offset
        return following

    def _advance(self, frames: Frames, offset: int) -> None:
        try:
            lsns = frames.rows.lsns() if isinstance(frames, CompiledFrames) else None
            if lsns is None:
                lsns = [(header[Key.REPLICA_ID], header[Key.LSN]) for header in frames.headers]
            self._lsns.update(lsns)
            VClock(self._lsns)
        except (KeyError, TypeError, ValueError) as error:
            raise LogFileError(
                f"a row's origin and lsn are missing or invalid ({error})", offset=offset, hint=DAMAGE_HINT
            ) from error

    def _check(self, file: LogFile, following: LogFile) -> None:
        """Raise an error if a file is missing between two files, or the end of the first.

        A failed write may leave a hole of lsns at the end of a file, but the file is continued and gets an end marker. After an
        interrupted writer, the next file begins at the last existing row.
        """
        previous = following.meta.previous_vclock
        leads_on = self.vclock.covers(resume.target(following.vclock, self._excluded))
        report = (
            f"an .xlog is missing between {file.path.name}, which begins at {file.vclock} and leads to {self.vclock}, "
            f"and {following.path.name}, which begins at {following.vclock}"
        )
        if previous is None:
            if not leads_on:
                raise PositionError(report, "Put it into the directory.")
        elif previous != file.vclock:
            raise XlogGapError(f"{report} behind one that begins at {previous}", "Put it into the directory.")
        elif self.tail_bytes is not None and not leads_on:
            raise LogFileError(
                f"{file.path} is incomplete: it leads to {self.vclock} and has no end marker, and the next one, "
                f"{following.path.name}, begins at {following.vclock}",
                offset=self._end,
                hint=f"If it is a copy, copy it again. {DAMAGE_HINT}",
            )


def ballot(directory: LogDirectory, position: VClock | None = None) -> Ballot:
    """Return the ballot that a server with these files would have.

    The last log is read to its end only if its start, and the newest snapshot, don't cover `position`. Raises
    ConfigurationError if there are no files, and LogFileError.
    """
    chain, snapshots = directory.chain(), directory.snapshots()
    if not chain and not snapshots:
        raise ConfigurationError(
            f"{directory.path} has no .snap or .xlog files", "Name a server's wal_dir, and its memtx_dir if that is another one."
        )
    end = join(*(file.vclock for file in chain[-1:] + snapshots[:1]))
    if chain and position is not None and not end.covers(position):
        stream = LogStream(directory, chain[-1].vclock)
        for _ in stream.rows():
            pass
        end = join(end, stream.vclock)
    first = chain[0].vclock if chain else end
    return Ballot(vclock=end, gc_vclock=first, is_read_only=True, is_ready=True)
