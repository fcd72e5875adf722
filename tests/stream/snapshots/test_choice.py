"""What the first snapshot publishes, if the configuration is another one when it goes on after a kill."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.master import Master
from tests.fakes.replica import Replica
from tests.fakes.shop import USERS, Sent, read

ROWS = 200
CHOICES: dict[str, dict[str, Any]] = {
    "all": {},
    "filter": {"snapshot_filters": [("users", "row.id % 2 == 0")]},
    "another filter": {"snapshot_filters": [("users", "row.id % 2 == 1")]},
    "none": {"snapshot_spaces": ["others"]},
}


class Interrupted(Replica):
    """A daemon that is killed after some batches of its first snapshot."""

    batches_left: int | None = 4

    def commit(self, batch_count: int | None = None) -> bool:
        """The first call is that after the snapshot."""
        count, self.batches_left = self.batches_left or batch_count, None
        return super().commit(count)


@pytest.mark.parametrize(("first", "second"), [(one, other) for one in CHOICES if one != "none" for other in CHOICES])
def test_another_choice_after_a_kill(first: str, second: str) -> None:
    """The rows that the snapshot reads in the end are chosen by the configuration as it is then, those from before, too."""
    master = Master("2.11")
    master.create_space("users", USERS)
    for number in range(ROWS):
        master.insert("users", number, "x" * 100, 0)
    replica = Interrupted(master, images=True, batch_bytes_max=1000, **CHOICES[first])
    replica.connect()
    replica.flush()
    replica.crash()
    before = [read(message) for message in replica.news()]
    assert {one.value["status"] for one in before if one.topic == "shop.snapshot"} == {"STARTED"}
    replica._options = {**replica._options, "snapshot_filters": [], "snapshot_spaces": [".*"], **CHOICES[second]}
    replica.connect()
    after = [read(message) for message in replica.news()]
    wanted = {
        "all": range(ROWS),
        "filter": range(0, ROWS, 2),
        "another filter": range(1, ROWS, 2),
        "none": range(0),
    }[second]
    published = [one.key["id"] for one in before + after if one.op == "r"]
    assert set(wanted) <= set(published)
    completed = next(one.value for one in after if one.topic == "shop.snapshot" and one.value["status"] == "COMPLETED")
    assert [space["rows"] for space in completed["spaces"]] == ([ROWS] if second == "all" else [])
    if first == second:
        assert sorted(published) == list(wanted), "what was read before the kill isn't published again"
    elif completed["spaces"]:
        assert completed["spaces"][0]["sweep_seq"] >= max(rows(before), default=0)


def rows(sent: list[Sent]) -> list[int]:
    return [one.source["seq"] for one in sent if one.op == "r"]
