"""What the daemon has been asked for and hasn't finished, as a part of the position: it survives every restart.

signal, HTTP request ─▶ Request at the end of `open` ─▶ its rows, chunk by chunk ─▶ gone from `open`
                        in one commit with `signals`: a signal is carried out once
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request to publish rows of some spaces again, and how far this has come.

    - `id`: the signal's id, or one that the daemon has made.
    - `space_ids`: the spaces whose rows are still to be published, the present one first.
    - `filters`: expressions by space id; of such a space, only the rows for which the expression is true are wanted.
    - `snapshot_id`: the number that the rows carry; 0 before the first one.
    - `after`: key in the state store of the last row that was shown, without the prefix that all keys of the space have.
    - `shown`: checksum of the topic and the primary key under which the present space's rows are shown. With another one, the
      space begins again at its first key.
    - `row_count`: number of rows of the present space that were shown.
    - `counts`: the spaces that are done, and their numbers of rows.
    - `since_seq`: the last seq before the first row of the present space; in a position of an older version, 0.
    """

    id: str
    space_ids: tuple[int, ...]
    filters: tuple[tuple[int, str], ...] = ()
    snapshot_id: int = 0
    after: bytes = b""
    shown: int = 0
    row_count: int = 0
    counts: tuple[tuple[int, int], ...] = ()
    since_seq: int = 0

    @property
    def all_rows(self) -> int:
        """Number of rows of all spaces that were shown."""
        return self.row_count + sum(count for _, count in self.counts)

    def from_the_beginning(self) -> Request:
        """Return the same request with nothing done."""
        done = tuple(space_id for space_id, _ in self.counts)
        return Request(self.id, (*done, *self.space_ids), self.filters)

    def to_json(self) -> dict[str, Any]:
        """Return the part of the position's record."""
        value: dict[str, Any] = {"id": self.id, "space_ids": self.space_ids}
        if self.filters:
            value["filters"] = self.filters
        if self.snapshot_id:
            value |= {
                "snapshot_id": self.snapshot_id,
                "after": self.after.hex(),
                "shown": self.shown,
                "row_count": self.row_count,
                "since_seq": self.since_seq,
                "counts": self.counts,
            }
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Request:
        """Read the part of the position's record."""
        return cls(
            id=value["id"],
            space_ids=tuple(value["space_ids"]),
            filters=tuple((space_id, text) for space_id, text in value.get("filters", ())),
            snapshot_id=value.get("snapshot_id", 0),
            after=bytes.fromhex(value.get("after", "")),
            shown=value.get("shown", 0),
            row_count=value.get("row_count", 0),
            since_seq=value.get("since_seq", 0),
            counts=tuple((space_id, count) for space_id, count in value.get("counts", ())),
        )


@dataclass(frozen=True, slots=True)
class SignalPlace:
    """Place in the signal topic up to which signals have been taken.

    - `topic_id`: Kafka's id of the topic. Another one means that the topic was made anew, and that its offsets say nothing.
    - `offset`: offset of the next signal.
    - `last_ts_ms`: highest timestamp of the signals that were taken, or the time when the daemon began to read them.
    - `floor_ts_ms`: signals that aren't younger were taken from the topic's predecessor.
    """

    topic_id: str
    offset: int
    last_ts_ms: int
    floor_ts_ms: int = 0

    def after(self, offset: int, ts_ms: int) -> SignalPlace:
        """Return the place after the signal at `offset`."""
        return replace(self, offset=offset + 1, last_ts_ms=max(self.last_ts_ms, ts_ms))

    def to_json(self) -> dict[str, Any]:
        """Return the part of the position's record."""
        return {
            "topic_id": self.topic_id,
            "offset": self.offset,
            "last_ts_ms": self.last_ts_ms,
            "floor_ts_ms": self.floor_ts_ms,
        }


@dataclass(frozen=True, slots=True)
class Requests:
    """The open requests in order, of which the first is being carried out, whether they pause, and the place in the signal topic.

    `signals` is None as long as the daemon has never read the topic. `order_count` is the number of orders, also those of HTTP,
    that have changed anything: it says which of the orders that were under way a checkpoint has.
    """

    open: tuple[Request, ...] = ()
    is_paused: bool = False
    signals: SignalPlace | None = None
    order_count: int = 0

    @property
    def current(self) -> Request | None:
        """The request whose rows are published now, unless requests pause."""
        return self.open[0] if self.open else None

    def with_current(self, request: Request) -> Requests:
        """Return them with another state of the first request."""
        return replace(self, open=(request, *self.open[1:]))

    def without_current(self) -> Requests:
        """Return the others. A pause ends with the last request."""
        rest = self.open[1:]
        return replace(self, open=rest, is_paused=self.is_paused and bool(rest))

    def to_json(self) -> dict[str, Any]:
        """Return the part of the position's record."""
        value: dict[str, Any] = {}
        if self.open:
            value["open"] = [request.to_json() for request in self.open]
        if self.is_paused:
            value["is_paused"] = True
        if self.signals is not None:
            value["signals"] = self.signals.to_json()
        if self.order_count:
            value["order_count"] = self.order_count
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Requests:
        """Read the part of the position's record."""
        signals = value.get("signals")
        return cls(
            open=tuple(map(Request.from_json, value.get("open", ()))),
            is_paused=value.get("is_paused", False),
            signals=SignalPlace(**signals) if signals is not None else None,
            order_count=value.get("order_count", 0),
        )


NO_REQUESTS = Requests()
"""Those of a daemon that was never asked for anything."""
