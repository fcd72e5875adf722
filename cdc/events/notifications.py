"""Records of the notification topic, as Debezium has them: how far snapshots and requests for rows have come.

They are a part of the batch that they tell of. So with exactly-once delivery COMPLETED becomes visible with the rows.
"""

from __future__ import annotations

from typing import Final, Literal

from cdc.events.json_values import encode

Aggregate = Literal["Initial Snapshot", "Incremental Snapshot"]
INITIAL: Final[Aggregate] = "Initial Snapshot"
"""A snapshot that is read from the server, whichever one it is."""
INCREMENTAL: Final[Aggregate] = "Incremental Snapshot"
"""A request for rows, and every other signal."""

NoteType = Literal["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED", "ABORTED", "SKIPPED", "PAUSED", "RESUMED"]
_VALUE_MAX: Final = 4_000
"""Length above which a text in a notification is cut."""


def notification_record(
    identity: str, aggregate: Aggregate, type_: NoteType, data: dict[str, str], now_us: int
) -> tuple[bytes, bytes]:
    """Return key and value of a notification. All values of `data` are texts, as in Debezium's."""
    value = {
        "id": identity,
        "aggregate_type": aggregate,
        "type": type_,
        "additional_data": {name: shortened(text) for name, text in data.items()},
        "timestamp": now_us // 1000,
    }
    return encode({"id": identity}), encode(value)


def shortened(text: str) -> str:
    """Return the beginning of a text that may be long because somebody has sent it."""
    return text if len(text) <= _VALUE_MAX else text[:_VALUE_MAX] + "…"
