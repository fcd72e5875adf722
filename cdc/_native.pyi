"""What the compiled module has (cdc/native/src). Only cdc.native imports it."""

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

class PendingChanges:
    doubtful: frozenset[bytes]
    def __init__(self) -> None: ...
    def get(self, key: bytes, unchanged: _T) -> bytes | _T | None: ...
    def is_cleared(self, key: bytes) -> bool: ...
    def changed(self, prefix: bytes, after: bytes) -> list[tuple[bytes, bytes | None]]: ...
    def put(self, key: bytes, tuple_: bytes | None) -> None: ...
    def put_undoable(self, key: bytes, tuple_: bytes | None) -> None: ...
    def keep_last(self) -> None: ...
    def undo_last(self) -> None: ...
    def clear(self, prefix: bytes) -> None: ...
    @property
    def change_count(self) -> int: ...
    def forget_after(self, mark: int) -> None: ...
    def take(self) -> Changes: ...
    def take_before(self, mark: int) -> Changes: ...
    def written(self, changes: Changes) -> None: ...

class StoreKeys:
    @staticmethod
    def compile(number: int, parts: list[tuple[int, str]]) -> StoreKeys | None: ...
    def of_tuple(self, tuple_: bytes) -> bytes | None: ...
    def of_key(self, key: bytes) -> bytes | None: ...

def updated(tuple_: bytes, operations: bytes, base: int, fields: list[tuple[bytes, str]]) -> bytes | None: ...

class FrameReader:
    """Cuts a byte stream into frames and reads their headers."""

    def __init__(self, frame_bytes_max: int) -> None: ...
    def feed(self, data: bytes) -> Rows | None:
        """The frames that are whole now; None if a length isn't one, which `rest` then has."""
    @property
    def rest(self) -> bytes: ...
    @property
    def buffered_bytes(self) -> int: ...

class Rows:
    """Whole frames, and what their headers say; nothing of that if one of them is odd."""

    @staticmethod
    def of(data: bytes) -> Rows | None:
        """Of these bytes, which are whole frames."""
    @staticmethod
    def of_log(data: bytes, block_ends: list[int]) -> tuple[Rows, int] | None:
        """Of bytes of a log file, and how many of these whole rows have; None if a block doesn't end with a row."""
    def lsns(self) -> list[tuple[int, int]] | None:
        """By origin, the lsn of its last row; None if a row's isn't told."""
    @property
    def has_group(self) -> bool:
        """Whether a header names a group: rows of local spaces do."""
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
        """The frames from `start` up to `stop`."""
    def whole_until(self, at: int, count_max: int) -> int:
        """Behind whole transactions of up to so many rows from row `at` on, but one at least if there is one."""
    def go_on(self, begun: Rows, /) -> bool:
        """Whether these rows are all of the transaction that `begun` ends within, and leave it open."""
    def end_of_open(self, at: int) -> int:
        """Behind the row that ends the transaction which is open at row `at`, or behind the last row."""

ImageKeys = tuple[int, list[tuple[int, str]], list[tuple[bytes, str]], bool]
"""What a space's keys begin with, their fields and types, the space's fields and types, and whether UPSERTs are taken."""

class CompiledRowPath:
    """What the events of one connection are made with."""

    def __init__(self, source: bytes, tombstones: bool, records_from: int | None, transaction_topic: str, bytes_max: int) -> None:
        """`records_from`: a transaction with so many events has records of its own, in this topic; None: none has."""
    def take(
        self,
        space_id: int,
        topic: str,
        name: bytes,
        table: bytes,
        schema: bytes,
        fields: list[tuple[bytes, bool]],
        parts: list[tuple[bytes, int, int]],
        fields_max: int,
        images: ImageKeys | None,
        tells_upserts: bool,
    ) -> None:
        """Take a space's rows from here on."""
    def pass_over(self, space_id: int) -> None:
        """Pass over a space's rows from here on, which have no events."""
    def forget(self, space_id: int) -> None:
        """Hand a space's rows back from here on."""
    def forget_all(self) -> None: ...
    def run(
        self,
        rows: Rows,
        at: int,
        suffix: bytes,
        vclock: list[tuple[int, int]],
        seq: int,
        byte_count: int,
        images: tuple[Any, Callable[[bytes], bytes | None]] | None,
    ) -> Run:
        """Handle whole transactions from row `at` on."""

    def begin_snapshot(self) -> None:
        """A snapshot begins."""
    def show_spaces(self, pieces: list[tuple[int, bytes, bytes]]) -> None:
        """By space, what stands between a snapshot's row and its seq, and what follows that; other spaces are handed back."""
    def show(
        self, rows: Rows, at: int, seq: int, byte_count: int, images: tuple[Any, Callable[[bytes], bytes | None]] | None
    ) -> Showing:
        """Handle rows of a snapshot from row `at` on."""
    def shown_unread(self) -> None:
        """The Python path has handled rows of a snapshot that weren't read here."""
    def shown(self, rows: Rows, start: int, stop: int) -> None:
        """The Python path has handled these rows of a snapshot."""

class CompiledMessages:
    """Messages that a run has made: tuples of topic, key and value, which are made when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[str, bytes | None, bytes | None]: ...
    def __iter__(self) -> Iterator[tuple[str, bytes | None, bytes | None]]: ...
    def topics(self) -> list[str]: ...
    def places(self, counts: Mapping[str, int]) -> list[tuple[str, int]]: ...

class Showing:
    """What showing a snapshot's rows came to."""

    at: int
    messages: CompiledMessages
    byte_count: int
    seq: int
    counts: dict[int, int]

class Run:
    """What a run came to."""

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
    """A producer of librdkafka's, for messages by the batch."""

    @staticmethod
    def bind(client: str, own: str) -> bool: ...
    @staticmethod
    def newest() -> ProducerHandle | None: ...
    def produce(self, parts: list[Any], start: int, within: int) -> tuple[int, int, int]: ...
