"""Which daemon owns the topics of a prefix."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from spark_jobs.contract.owner import Owner
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from tests.spark.messages import schema


def named(name: str | None, space: str = "users") -> str:
    record = json.loads(schema(0, space=space).value or "")
    record["source"].pop("name")
    if name is not None:
        record["source"]["name"] = name
    return json.dumps(record)


def test_the_owner_is_who_wrote_the_forms_and_its_topics_those_of_the_names_in_them() -> None:
    renamed = json.loads(named("shop", "customers"))
    renamed["tableChanges"][0]["previousId"] = '"clients a/b"'
    owner = Owner.of("shop", [named("shop"), json.dumps(renamed)])
    assert owner.names is not None
    assert owner.names.own == {"shop"}
    assert owner.names.doubt is None
    assert owner.topics == {"shop.users", "shop.customers", "shop.clients_a_b"}


def test_mirrored_topics_have_another_prefix_than_the_name_of_their_owner() -> None:
    owner = Owner.of("dc1.shop", [named("shop")])
    assert owner.names is not None
    assert owner.names.own == {"dc1.shop", "shop"}
    assert owner.topics == {"dc1.shop.users"}


def test_without_forms_the_name_is_the_prefix_and_another_one_is_doubtful() -> None:
    for records in ([], ["no JSON", "[]", '{"source":{}}']):
        owner = Owner.of("shop", records)
        assert owner.names is not None
        assert owner.names.own == {"shop"}
        assert not owner.topics
        assert owner.is_doubtful
        assert "shop.schema" in str(owner.names.doubt)


def test_a_prefix_of_several_daemons_is_an_error_unless_one_of_them_has_its_name() -> None:
    owner = Owner.of("shop", [named("market"), named("shop")])
    assert owner.names is not None
    assert owner.names.own == {"shop"}
    with pytest.raises(JobError, match=r"all.schema has the records of several daemons: 'market', 'shop'"):
        Owner.of("all", [named("market"), named("shop")])


@pytest.mark.parametrize("prefix", ["sh.op", "a+b"])
def test_patterns_match_complete_names_only_wherever_they_are_searched(prefix: str) -> None:
    """As Spark searches for them: anywhere in a topic's name."""
    spaces = ("users", "users_archive", "old_users", "schema_migrations", "snapshots")
    topics = [f"{before}{prefix}.{space}" for before in ("", "e", "e.", "test-") for space in (*spaces, "schema")]
    alike = ("users", "schema_migrations", "snapshots", "old_users")
    for chosen, found in ((".*", spaces), ("users", ("users",)), ("users|old", ("users",)), (".*s", alike)):
        pattern = Topics("k", prefix, chosen).pattern()
        assert {topic for topic in topics if re.search(pattern, topic)} == {f"{prefix}.{space}" for space in found}
    control = Topics("k", prefix, "users").pattern(["schema"])
    assert [topic for topic in topics if re.search(control, topic)] == [f"{prefix}.users", f"{prefix}.schema"]


def test_records_without_a_name_tell_the_topics_only() -> None:
    owner = Owner.of("shop", [named(None)])
    assert owner.names is None
    assert owner.topics == {"shop.users"}
    assert not owner.is_doubtful
    assert owner.has_one_of({"whoever"})


def test_spaces_whose_rows_go_to_another_topic() -> None:
    def record(space_id: int, version: int, space: str, **more: Any) -> str:
        source = {"name": "shop", "table": space, "space_id": space_id, "schema_version": version}
        return json.dumps({"source": source, "tableChanges": [{"type": "ALTER", "id": f'"{space}"'} | more]})

    records = [
        record(1, 3, "a", topic="all"),
        record(1, 1, "a"),
        record(2, 2, "b", topic="all"),
        record(2, 4, "b"),
        record(3, 5, "c", topic="all"),
        record(3, 5, "c", type="DROP"),
        record(4, 6, "d", topic="all"),
    ]
    owner = Owner.of("shop", records)
    assert owner.routed == {"a": "shop.all", "d": "shop.all"}
