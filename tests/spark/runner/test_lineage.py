"""What a catalog of lineage is told of a job, and that no batch waits for it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from openlineage.client.serde import Serde

from spark_jobs.errors import JobError
from spark_jobs.runner import lineage
from spark_jobs.runner.lineage import Lineage, Place, dataset_name
from spark_jobs.runner.progress import Batch

PLACE = Place("shop.current", "PLAINTEXT://k1:9092,k2:9092")


def batch(number: int, *topics: str) -> Batch:
    return Batch(number, 10, 0.5, 70 + number, 1.0, 3, topics)


class Catalog:
    """A client that keeps what it is to send, and refuses or hangs if a test wants it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_away = False

    def emit(self, event: Any) -> None:
        self.may_go_on.wait(60)
        if self.is_away:
            raise OSError("refused")
        self.events.append(Serde.to_dict(event))

    def close(self, timeout: float) -> None:
        pass


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


def following(catalog: Catalog) -> Lineage:
    found = Lineage(PLACE, lambda: {"s3a://lake/users": [("id", "bigint")]})
    found._new_client = lambda: catalog
    return found


def test_a_run(catalog: Catalog) -> None:
    with following(catalog) as listener:
        listener.batch(batch(0, "shop.users"))
        listener.batch(batch(1, "shop.users"))
        listener.batch(batch(2, "shop.orders", "shop.users"))
    assert [event["eventType"] for event in catalog.events] == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    first, second, last = catalog.events[1:]
    assert [(each["namespace"], each["name"]) for each in first["inputs"]] == [("kafka://k1:9092", "shop.users")]
    assert [each["name"] for each in second["inputs"]] == ["shop.orders", "shop.users"]
    (table,) = last["outputs"]
    assert (table["namespace"], table["name"]) == ("s3a://lake", "users")
    assert [(each["name"], each["type"]) for each in table["facets"]["schema"]["fields"]] == [("id", "bigint")]
    counts = last["run"]["facets"]["tarantoolCdc_batches"]
    assert (counts["records"], counts["batch"], counts["seq"]) == (30, 2, 72)
    assert len({event["run"]["runId"] for event in catalog.events}) == 1


def test_a_failure_quotes_no_record(catalog: Catalog) -> None:
    with pytest.raises(JobError), following(catalog):
        raise JobError("the value 'secret' isn't a number")
    (told,) = [event["run"]["facets"]["errorMessage"]["message"] for event in catalog.events if event["eventType"] == "FAIL"]
    assert told == "JobError: the job's log has the message"


def test_a_catalog_that_is_away(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    catalog.is_away = True
    with following(catalog) as listener:
        listener.batch(batch(0, "shop.users"))
    assert catalog.events == []
    assert capsys.readouterr().err.count("events of lineage can't be sent: OSError: refused") == 1


def test_no_batch_waits_for_it(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "END_SECONDS", 0.1)
    catalog.may_go_on.clear()
    with following(catalog) as listener:
        for number in range(2 * lineage._WAITING_MAX):
            listener.batch(batch(number))
        assert listener._waiting.qsize() == lineage._WAITING_MAX
    assert catalog.events == []
    catalog.may_go_on.set()


def test_the_package_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(JobError, match="--lineage needs the package openlineage-python"):
        Lineage(PLACE, dict)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/var/lib/lake/users", ("file", "/var/lib/lake/users")),
        ("file:/var/lib/lake/users/", ("file", "/var/lib/lake/users")),
        ("s3a://bucket/lake/users", ("s3a://bucket", "lake/users")),
        ("lake.shop.users", ("spark://lake", "shop.users")),
    ],
)
def test_names_of_tables(place: str, name: tuple[str, str]) -> None:
    assert dataset_name(place) == name
