"""Ends of snapshots, and what they say of rows that are gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jobs.contract.control_topics import Completed, Sweep, completed, started, swept
from spark_jobs.errors import JobError


def ended(seq: int, *spaces: tuple[int, str, int]) -> str:
    told = [{"space_id": space_id, "space": space, "rows": 1, "sweep_seq": up_to} for space_id, space, up_to in spaces]
    return json.dumps({"snapshot_id": "1", "status": "COMPLETED", "vclock": {}, "seq": seq, "spaces": told, "ts_ms": 7})


STARTED = json.dumps({"snapshot_id": "1", "status": "STARTED", "vclock": {}, "seq": 0, "ts_ms": 7})


def test_only_ends_are_read() -> None:
    found = completed([STARTED, ended(9, (512, "users", 0), (513, "orders", 4))], "shop.snapshot")
    users, orders = Sweep(512, "users", 0), Sweep(513, "orders", 4)
    assert found == [Completed(9, 7, (users, orders))]
    assert found[0].sweeps == [orders]


def test_a_request_that_was_cut_off_is_over_and_sweeps_nothing() -> None:
    aborted = json.dumps({"snapshot_id": "1", "status": "ABORTED", "vclock": {}, "seq": 9, "spaces": [], "ts_ms": 7})
    assert completed([STARTED, aborted], "shop.snapshot") == [Completed(9, 7, ())]
    assert swept([STARTED, aborted], "shop.snapshot", "space") == {}


def test_beginnings() -> None:
    assert started([STARTED, ended(9), STARTED.replace('"seq": 0', '"seq": 9')]) == [0, 9]


def test_the_highest_counts_by_name_and_by_number() -> None:
    texts = [ended(9, (512, "users", 6)), STARTED, ended(20, (512, "users", 3), (513, "users", 4))]
    assert swept(texts, "shop.snapshot", "space") == {"users": 6}
    assert swept(texts, "shop.snapshot", "space_id") == {512: 6, 513: 4}
    assert swept([], "shop.snapshot", "space") == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "{}", '{"status":"COMPLETED","seq":1,"ts_ms":1}', ended(1, (512, "users", 1))[:-1]]
)
def test_what_is_no_snapshot_record_is_named(text: Any) -> None:
    with pytest.raises(JobError, match=r"The topic shop\.snapshot holds something that is no snapshot record"):
        completed([STARTED, text], "shop.snapshot")
