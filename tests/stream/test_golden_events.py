"""One message of every kind, as it is on the wire: the files that the Spark jobs' tests read too.

`tests/golden/published/` is the contract between the daemon and its consumers as bytes. Here the daemon must produce it; in
tests/spark the jobs must understand it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final
from uuid import UUID

from cdc.protocol.extensions import Datetime, Interval
from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes.golden import ROOT, Golden
from tests.fakes.master import Master
from tests.fakes.replica import Replica

EVENTS: Final = ROOT / "golden" / "published"
FORMAT: Final = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string", "is_nullable": True},
    {"name": "balance", "type": "number", "is_nullable": True},
]
LONGER: Final = [*FORMAT, {"name": "city", "type": "string", "is_nullable": True}]
VALUES: Final = [
    18446744073709551615,
    -9223372036854775808,
    9007199254740993,
    1.5,
    -0.0,
    1e300,
    float("nan"),
    float("-inf"),
    'quote " and \\ and \n',
    "b\udcff",
    b"\x00\xff",
    True,
    None,
    Decimal("-12345678901234567890.123456789"),
    Decimal("0.000"),
    UUID("64d22e4d-ac92-4a23-899a-e59f34af5479"),
    Datetime(1709240398, 123456789, 180),
    Interval(1, -2, 0, 3, 4, 5, 6, 7),
    [1, [2, {"three": 3}]],
    {"key": {"ключ": "значение"}},
    {1: "a number as key"},
]


def text(message: Message | Broadcast) -> str:
    """One line: topic, key and value, the two as they are on the wire."""
    topic, key, value = (message.topic, None, message.value) if isinstance(message, Broadcast) else message
    shown = [part.decode() if part is not None else "null" for part in (key, value)]
    return f'{{"topic":"{topic}","key":{shown[0]},"value":{shown[1]}}}'


class Recorder:
    """A master with one space, the daemon's core behind it, and files that take what comes out."""

    def __init__(self, golden: Golden) -> None:
        self._golden = golden
        self.master = Master("2.11")
        self.master.create_space("users", FORMAT)
        self.master.insert("users", 1, "one", 10)
        self.replica = Replica(self.master)
        self.replica.connect()

    def record(self, name: str, topic: str = "shop.users") -> None:
        """What came out for a topic since the last call is the content of a file."""
        if self.replica.relay.is_streaming:
            self.replica.relay.relay()
            self.replica.receive()
            self.replica.commit()
        lines = [text(message) for message in self.replica.news()]
        wanted = [line for line in lines if line.startswith(f'{{"topic":"{topic}"')]
        assert wanted, f"nothing came out for {topic}"
        self._golden.check_lines(EVENTS / f"{name}.jsonl", wanted)


def test_snapshot(golden: Golden) -> None:
    Recorder(golden).record("r")


def test_snapshot_records(golden: Golden) -> None:
    Recorder(golden).record("snapshot", "shop.snapshot")


def test_changes(golden: Golden) -> None:
    recorder = Recorder(golden)
    recorder.record("r")
    master = recorder.master
    master.insert("users", 2, "two", None)
    recorder.record("c")
    master.replace("users", 2, "zwei", 2.5)
    recorder.record("u-replace")
    master.update("users", [2], [":", 2, 2, 1, "É"], ["+", "balance", 1], ["!", 4, "fourth"], ["=", -1, "4th"], ["#", -1, 1])
    recorder.record("u-patch")
    master.upsert("users", [3, "three", 3], ["-", 3, 1])
    recorder.record("u-upsert")
    master.delete("users", 3)
    recorder.record("d-and-tombstone")
    master.truncate("users")
    recorder.record("t")


def test_transaction(golden: Golden) -> None:
    recorder = Recorder(golden)
    recorder.record("r")
    recorder.master.begin()
    recorder.master.insert("users", 5, "five")
    recorder.master.insert("users", 6)
    recorder.master.commit()
    recorder.record("transaction", "shop.transaction")


def test_forms(golden: Golden) -> None:
    recorder = Recorder(golden)
    recorder.record("schema-create", "shop.schema")
    recorder.master.format("users", LONGER)
    recorder.record("schema-alter", "shop.schema")
    recorder.master.rename("users", "people")
    recorder.record("schema-rename", "shop.schema")
    recorder.master.drop("people")
    recorder.record("schema-drop", "shop.schema")


def test_values(golden: Golden) -> None:
    recorder = Recorder(golden)
    recorder.record("r")
    recorder.master.insert("users", 7, "all values", 0, *VALUES)
    recorder.record("values")
