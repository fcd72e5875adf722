"""Who writes under a prefix, and the numbers of a fleet's forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jobs.contract import fleet
from spark_jobs.contract.envelope import CONTROL_TOPICS, Names
from spark_jobs.contract.fleet import Writers, writers
from spark_jobs.contract.fleet_forms import FleetForm, FleetForms, ShardForm, space_number
from spark_jobs.contract.forms import Forms
from spark_jobs.contract.owner import owner_of_fleet
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from tests.spark.messages import by, schema

WIDER = (("id", "unsigned"), ("name", "string"), ("balance", "number"), ("note", "string"))


def record(shard: str, *, is_apart: bool = False, **options: Any) -> str:
    """A schema record of a shard."""
    value = by(shard, schema(0, **options), is_apart=is_apart).value
    assert value is not None
    return value


def test_the_schema_topics_tell_whose_a_prefix_is() -> None:
    shared = {f"shop.{shard}.schema": [record(shard)] for shard in ("s2", "s1")}
    assert writers("shop", shared) == Writers(sharing=("s1", "s2"))
    apart = {f"shop.{shard}.schema": [record(shard).replace('"name":"shop"', f'"name":"shop.{shard}"')] for shard in ("s1", "s2")}
    assert writers("shop", apart) == Writers(apart=("s1", "s2"))
    assert writers("shop.s1", {"shop.s1.schema": apart["shop.s1.schema"]}) == Writers()
    assert writers("shop.s1", {"shop.s1.schema": shared["shop.s1.schema"]}) == Writers(part_of="shop")
    # The fleet's prefix ends in the name of a shard.
    alike = record("s1").replace('"name":"shop"', '"name":"shop.s1"')
    assert writers("shop.s1", {"shop.s1.s1.schema": [alike]}) == Writers(sharing=("s1",))
    assert writers("shop.s1.s1", {"shop.s1.s1.schema": [alike]}) == Writers(part_of="shop.s1")
    # A daemon, and another one whose prefix begins alike.
    plain = schema(0).value or ""
    assert writers("shop", {"shop.schema": [plain], "shop.eu.schema": [plain.replace('"shop"', '"shop.eu"')]}) == Writers()
    assert writers("shop", {"shop.schema": ["no JSON", "{}"]}) == Writers()


@pytest.mark.parametrize(
    ("job", "remedy"),
    [
        ("current", "`current --changes` with its table"),
        ("history", "`history_of --changes` with its table"),
        ("search_index", "`search_index --changes` with its table"),
        ("cache_invalidation", "`cache_invalidation --changes` with its table"),
        ("materialize", "`cache_invalidation` with the table of `changes`"),
    ],
)
def test_a_job_that_can_not_read_shared_topics_names_what_can(job: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, *_: object) -> None:
            """Of topics that aren't asked for."""

        def names(self) -> list[str]:
            return ["shop.s1.schema", "shop.s2.schema"]

    monkeypatch.setattr(fleet, "KafkaClient", Client)
    monkeypatch.setattr(fleet, "schema_records", lambda *_: {f"shop.{shard}.schema": [record(shard)] for shard in ("s1", "s2")})
    nothing: Any = None
    with pytest.raises(JobError, match=f"`{job}` can't read such topics") as refused:
        fleet.with_shards(nothing, Topics("k", "shop"), job, takes_fleet=False)
    assert remedy in str(refused.value)


def test_topics_of_a_fleet() -> None:
    topics = Topics("k", "shop", shards=("s1", "s2"))
    assert topics.controls(["schema"]) == ["shop.s1.schema", "shop.s2.schema"]
    # With --on-error dead-letter, what isn't a change event is left out of all others.
    assert {"shop.s1.buckets", "shop.s2.buckets", "shop.s1.schema"} <= {*topics.all_controls}
    assert Topics("k", "shop").all_controls == [f"shop.{name}" for name in CONTROL_TOPICS]
    records = {shard: [record(shard), record(shard, space="_bucket", space_id=600, is_apart=True)] for shard in ("s1", "s2")}
    owner = owner_of_fleet("shop", records)
    assert owner.names == Names(frozenset({"shop"}), shards=("s1", "s2"))
    assert owner.topics >= {"shop.users", "shop.s1._bucket", "shop.s2._bucket"}
    assert owner.routed == {}
    elsewhere = {"s1": [record("s1").replace('"type":"ALTER",', '"type":"ALTER","topic":"people",')]}
    assert owner_of_fleet("shop", elsewhere).routed == {"users": "shop.people"}
    assert owner_of_fleet("shop", {"s1": []}).is_doubtful


def test_forms_that_are_the_same_in_all_shards_have_one_number() -> None:
    forms = FleetForms()
    forms.learn("s1", [record("s1")], 0)
    forms.learn("s2", [record("s2", space_id=515, version=9), record("s2", space_id=515, version=12, columns=WIDER)], 0)
    forms = FleetForms.from_json(json.loads(json.dumps(forms.to_json())))
    forms.learn("s1", [record("s1", version=4, columns=WIDER), record("s1")], 70)
    assert forms.known == {
        ShardForm("s1", 512, 1): FleetForm("users", 1),
        ShardForm("s2", 515, 9): FleetForm("users", 1),
        ShardForm("s2", 515, 12): FleetForm("users", 2),
        ShardForm("s1", 512, 4): FleetForm("users", 2),
    }
    # Back to the former form, and each shard's own space.
    forms.learn("s2", [record("s2", space_id=515, version=20)], 80)
    forms.learn("s2", [record("s2", space="_bucket", space_id=600, version=3, is_apart=True)], 80)
    assert forms.known[ShardForm("s2", 515, 20)] == FleetForm("users", 3)
    read = Forms("schema", forms.records())
    latest = read.latest("users")
    assert latest is not None
    assert (latest.schema_version, latest.space_id, latest.seq) == (3, space_number("users"), 80)
    assert read.names() == {"users", "s2._bucket"}
    assert read.identity_changes() == []


def test_what_a_table_of_the_fleet_cannot_follow_is_refused_by_name() -> None:
    forms = FleetForms()
    forms.learn("s1", [record("s1")], 0)
    with pytest.raises(JobError, match=r"shard 's1' has renamed the space 'users' to 'people'"):
        forms.learn("s1", [record("s1", space="people", version=2)], 5)
    with pytest.raises(JobError, match=r"shard 's1' has renamed the space 'users' to 'archive'"):
        forms.learn("s1", [record("s1", space="archive", version=2)], 5, lambda space: space == "users")
    with pytest.raises(JobError, match=r"'users' has another primary key in the shard 's2' \(name\)"):
        forms.learn("s2", [record("s2", key=("name",))], 5)
    with pytest.raises(JobError, match=r"s2.schema holds something"):
        forms.learn("s2", ["{}"], 5)
    forms.learn("s2", [record("s2", key=("name",))], 5, lambda space: space != "users")
    assert list(forms.known) == [ShardForm("s1", 512, 1)]
