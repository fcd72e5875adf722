"""What the buckets' topics say of doubled buckets, and of those that nobody owns."""

from __future__ import annotations

import pytest

from spark_jobs.audit.buckets import judge, states
from spark_jobs.errors import JobError

BEGUN = ('{"bucket":null}', '{"replicaset_uuid":"a"}')


def record(bucket: int, status: str | None, generation: int = 3) -> tuple[str, str | None]:
    return f'{{"bucket":{bucket}}}', None if status is None else f'{{"status":"{status}","generation":{generation}}}'


def test_a_bucket_belongs_to_one_shard_or_is_on_its_way() -> None:
    found = states(
        {
            "s1": [BEGUN, record(1, "active"), record(2, "sent"), record(3, "active"), record(4, "garbage"), record(5, "active")],
            "s2": [
                BEGUN,
                record(1, None),
                record(2, "receiving"),
                record(3, "pinned"),
                record(4, "garbage"),
                record(5, "receiving"),
            ],
        }
    )
    assert found[2] == {"s1": ("sent", 3), "s2": ("receiving", 3)}
    told = judge(found, found)
    assert [(finding.kind, finding.key) for finding in told] == [("bucket", "3"), ("bucket", "4")]
    assert "several shards (s1: active, s2: pinned)" in told[0].sentence
    assert "no shard (s1: garbage, s2: garbage)" in told[1].sentence


def test_what_only_one_of_two_looks_shows_is_a_move() -> None:
    before, now = states({"s1": [record(1, "active")]}), states({"s1": [record(1, "active")], "s2": [record(1, "active")]})
    gone = states({"s1": [record(1, "garbage")]})
    assert judge(before, now) == judge(now, before) == judge(before, gone) == judge(gone, before) == []


def test_a_daemon_that_is_behind_is_no_fault() -> None:
    found = states(
        {
            "s1": [record(1, "active", 2), record(2, "sending"), record(3, "sent"), record(4, "sent"), record(5, "sent")],
            "s2": [record(1, "active"), record(2, "active"), record(4, "garbage", 1), record(5, "garbage")],
        }
    )
    assert [finding.key for finding in judge(found, found)] == ["5"]


def test_another_record_is_an_error() -> None:
    with pytest.raises(JobError, match="shard 's2' holds a record that isn't one"):
        states({"s2": [("{}", None)]})
