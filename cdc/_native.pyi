"""Types of the compiled module (cdc/native/src). Only cdc.native imports it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

SOURCES_CRC32: Final[str]

class Changes:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]: ...
    def extend(self, more: Iterable[tuple[bytes, bytes | None]], /) -> None: ...
    @property
    def byte_count(self) -> int: ...
    def slices(self, changes_max: int, bytes_max: int) -> list[list[tuple[bytes, bytes | None]]]: ...
    def pack(self) -> bytes: ...
    def write_packed(self, descriptor: int, offset: int) -> None: ...

class PendingChanges:
    doubtful: frozenset[bytes]
    def __init__(self) -> None: ...
    def get(self, key: bytes, unchanged: _T) -> bytes | _T | None: ...
    def is_cleared(self, key: bytes) -> bool: ...
    def changed(self, prefix: bytes, after: bytes) -> list[tuple[bytes, bytes | None]]: ...
    def put(self, key: bytes, tuple_: bytes | None) -> None: ...
    def clear(self, prefix: bytes) -> None: ...
    @property
    def change_count(self) -> int: ...
    def forget_after(self, mark: int) -> None: ...
    def take(self) -> Changes: ...
    def take_before(self, mark: int) -> Changes: ...
    def written(self, changes: Changes) -> None: ...

KeyPart = tuple[int, list[int | str], str, bool]
"""A part of a primary key: its field (from 0), the path inside it, its type, and whether each notation of a value is a key."""

class StoreKeys:
    @staticmethod
    def compile(number: int, parts: list[KeyPart]) -> StoreKeys | None: ...
    def of_tuple(self, tuple_: bytes) -> bytes | None: ...
    def of_key(self, key: bytes) -> bytes | None: ...

def updated(tuple_: bytes, operations: bytes, base: int, fields: list[tuple[bytes, str]]) -> bytes | None: ...

class FrameReader:
    """Reader that splits a byte stream into frames and reads their headers."""

    def __init__(self, frame_bytes_max: int) -> None: ...
    def feed(self, data: bytes) -> Rows | None:
        """Return the frames that are now complete. None if a length is malformed; `rest` then begins with it."""
    @property
    def rest(self) -> bytes: ...
    @property
    def buffered_bytes(self) -> int: ...

class Rows:
    """Complete frames and their headers; without headers if one of the frames is odd."""

    @staticmethod
    def of(data: bytes) -> Rows | None:
        """Read bytes that consist of complete frames; return None if they don't."""
    @staticmethod
    def of_log(data: bytes, block_ends: list[int]) -> tuple[Rows, int] | None:
        """Read bytes of a log file; return the complete rows, and how many bytes they occupy.

        Returns None if one of the blocks, whose ends are given, doesn't end with a row.
        """
    def lsns(self) -> list[tuple[int, int]] | None:
        """Return the lsn of each origin's last row; None if a header is unsound or wasn't read."""
    @property
    def has_group(self) -> bool:
        """Whether a header names a group, as the headers of local spaces' rows do."""
    def __len__(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def ends(self) -> list[int]: ...
    @property
    def is_odd(self) -> bool: ...
    @property
    def has_only_rows(self) -> bool: ...
    def part(self, start: int, stop: int) -> Rows:
        """Return the frames from `start` (inclusive) to `stop` (exclusive)."""
    def whole_until(self, at: int, count_max: int) -> int:
        """Return the index after complete transactions from row `at` on, once they have `count_max` rows."""
    def continues_open(self, begun: Rows, /) -> bool:
        """Return whether all these rows belong to the transaction open at the end of `begun`, and none of them ends it."""
    def arrivals(self, at: int, synchronous: list[int], has_flags: bool, after: int, waiting: int) -> Arrivals:
        """Return the transactions from row `at` on that can be decided together, if they come after lsn `after`.

        `synchronous` are the synchronous spaces. `waiting` is the lsn of the last synchronous transaction that waits before the
        row, 0 if there is none; then the first transaction is one that waits, could have waited, or is a CONFIRM.
        """
    def origin(self, at: int) -> int:
        """Return the replica id of row `at`."""
    def lsn(self, at: int) -> int:
        """Return the lsn of row `at`."""
    def waiting_counts(self, at: int) -> tuple[int, int]:
        """Return how many transactions there are from row `at` on, and their number of rows, without CONFIRMs."""
    def end_of_open(self, at: int) -> int:
        """Return the index after the row that ends the transaction open at row `at`, or after the last row."""

FittingRules = tuple[int, int, list[tuple[str, bool, int]]]
"""The number of fields that a tuple must have (0 for any), the least number, and by field: the name of its check, whether it may
be nil, and the scale of its decimals."""

ColumnTreatments = tuple[list[tuple[str, int, bytes]], bytes]
"""By field the kind of its treatment, a number of characters, and a constant as JSON; and the salt."""
ImageRules = tuple[int, list[tuple[bytes, str]], bool, FittingRules | None]
"""Number with which a space's keys begin, the space's fields and types, whether the space is in vinyl, and the rules for the
results of its UPSERTs."""

class Arrivals:
    """Consecutive transactions of one origin: asynchronous ones, synchronous ones, and CONFIRMs of earlier ones."""

    def __init__(self, lsns: list[int], starts: list[int], end: int) -> None:
        """Make arrivals without CONFIRMs: lsns and first rows of the synchronous transactions, and the end of all."""
    @property
    def end(self) -> int:
        """Index after the last row of all."""
    @property
    def confirmed(self) -> int:
        """The highest lsn that a CONFIRM names, 0 without any."""
    @property
    def lsns(self) -> list[int]:
        """Lsns of the synchronous transactions."""
    @property
    def last_lsn(self) -> int:
        """Lsn of the last synchronous transaction, 0 without any."""
    def first_lsn(self, at: int) -> int:
        """Return the lsn of the first synchronous transaction from row `at` on, 0 without any."""
    def after(self, start: int) -> Arrivals:
        """Return the arrivals from row `start` on, as if this were the first row."""
    def plain_until(self, at: int) -> int:
        """Return the index of the next CONFIRM that doesn't move the position, from row `at` on, or the end."""
    def certain_until(self, confirmed: int) -> tuple[int, int]:
        """Return the index before which all are certain, and the last confirmed lsn, if lsns up to `confirmed` are confirmed."""

class CompiledRowPath:
    """Maker of one connection's events from the rows of spaces with a plan."""

    def __init__(
        self,
        source: bytes,
        is_avro: bool,
        is_lean: bool,
        tombstones: bool,
        records_from: int | None,
        transaction_topic: str,
        bytes_max: int,
    ) -> None:
        """`source` is the beginning of each event's source, in JSON or in Avro, with all fields or a few.

        `records_from`: number of events from which a transaction has BEGIN and END records, in `transaction_topic`. None: no
        transaction has them.
        """
    def set_plan(
        self,
        space_id: int,
        topic: str,
        name: bytes,
        table: bytes,
        schema: bytes,
        openings: list[bytes],
        avro: tuple[tuple[list[tuple[str, bool]], bool] | None, tuple[bytes, list[str]] | None],
        fields: list[tuple[bytes, bool]],
        parts: list[tuple[bytes, KeyPart]],
        fields_max: int,
        images: ImageRules | None,
        columns: ColumnTreatments | None,
        counts_upserts: bool,
        is_synchronous: bool,
    ) -> None:
        """Handle a space's rows from here on."""
    def skip_space(self, space_id: int, is_synchronous: bool) -> None:
        """Skip a space's rows from here on, because they have no events."""
    def remove_plan(self, space_id: int) -> None:
        """Hand a space's rows back from here on."""
    def remove_all_plans(self) -> None: ...
    @property
    def upsert_count(self) -> int:
        """Number of UPSERTs handled in the spaces where they are counted."""
    def run(
        self,
        rows: Rows,
        at: int,
        stop: int,
        certain: Arrivals | None,
        suffix: bytes,
        vclock: list[tuple[int, int]],
        seq: int,
        byte_count: int,
        images: tuple[Any, Callable[[bytes], bytes | None]] | None,
    ) -> Run:
        """Handle complete transactions from row `at` (inclusive) to `stop` (exclusive).

        If they are `certain` arrivals, the limbo has released all of them; otherwise those that may have to wait are handed back.
        """

    def begin_snapshot(self) -> None:
        """Discard the progress of a previous snapshot, because a snapshot begins."""
    def set_snapshot_spaces(self, pieces: list[tuple[int, bytes, bytes]]) -> None:
        """Set, by space, the piece between a snapshot row and its seq, and the piece after it; other spaces are handed back."""
    def run_snapshot(
        self, rows: Rows, at: int, seq: int, byte_count: int, images: tuple[Any, Callable[[bytes], bytes | None]] | None
    ) -> SnapshotRun:
        """Handle rows of a snapshot from row `at` on."""
    def skip_stored(
        self, rows: Rows, at: int, last: bytes, stored: list[tuple[bytes, bytes]], index: int
    ) -> tuple[int, int, int, bytes, bytes | None]:
        """Skip rows of a snapshot from row `at` on that are equal to the store's rows `stored`, from `index` on.

        Returns the indices of the next row and of the store's next row, the number of skipped rows, the last one's key, and the
        key of the last row that the snapshot lacks, if it lacks the store's next rows.
        """
    def continue_snapshot_after(self, space_id: int, last: bytes, bound: bytes | None) -> None:
        """Record that a space's rows up to the key `last`, and the store's rows before `bound`, have been handled."""
    def last_snapshot_key(self, space_id: int) -> bytes | None:
        """Return the greatest key of a space in a snapshot so far."""
    def mark_unread(self) -> None:
        """Record that the Python path has handled rows of a snapshot that weren't read here."""
    def mark_handled(self, rows: Rows, start: int, stop: int) -> None:
        """Record that the Python path has handled the rows from `start` (inclusive) to `stop` (exclusive) of a snapshot."""

class CompiledMessages:
    """Messages of a run: tuples of topic, key and value, which are created on access."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[str, bytes | None, bytes | None]: ...
    def __iter__(self) -> Iterator[tuple[str, bytes | None, bytes | None]]: ...
    def topics(self) -> list[str]: ...
    def places(self, counts: Mapping[str, int]) -> list[tuple[str, int]]: ...

class SnapshotRun:
    """Result of `CompiledRowPath.run_snapshot`."""

    at: int
    messages: CompiledMessages
    byte_count: int
    seq: int
    counts: dict[int, int]

class Run:
    """Result of `CompiledRowPath.run`."""

    at: int
    messages: CompiledMessages
    byte_count: int
    seq: int
    row_count: int
    timestamp: float
    vclock: dict[int, int]
    has_records: bool
    is_full: bool

class ProducerHandle:
    """Batch interface of a librdkafka producer."""

    @staticmethod
    def bind(client: str, own: str) -> bool: ...
    @staticmethod
    def newest() -> ProducerHandle | None: ...
    def produce(self, parts: list[Any], start: int, within: int) -> tuple[int, int, int]: ...
