"""Names of fields in documents: whatever fields are called, OpenSearch can store all of them, each under its own name."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spark_jobs.feeds.field_names import META, count_of, stored_names

TEXT = {"type": "text"}


def names(*fields: str, properties: dict[str, Any] | None = None) -> tuple[str, ...]:
    return stored_names([(field, False) for field in fields], properties or {})


def nested(path: list[str], mapping: dict[str, Any]) -> dict[str, Any]:
    """As OpenSearch shows the mapping of a name with dots."""
    first, *others = path
    return {first: {"properties": nested(others, mapping)} if others else mapping}


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        (("id", "name", "_private", "a.b", "x y", "ключ"), ("id", "name", "_private", "a.b", "x y", "ключ")),
        (("a", "a.b"), ("a", "a~2eb")),
        (("a.b", "a"), ("a.b", "a~")),
        (("x.y.z", "x.y"), ("x.y.z", "x~2ey")),
        (("_id", "_source.x", "_cdc"), ("~5fid", "~5fsource~2ex", "~5fcdc")),
        (("a.", ".b", "", ".", "a..b", "a. .b"), ("a~2e", "~2eb", "~", "~2e", "a~2e~2eb", "a~2e ~2eb")),
        (("_id", "~5fid"), ("~5fid", "~5fid~")),
        ((".".join("a" * 20), ".".join("b" * 21)), (".".join("a" * 20), "~2e".join("b" * 21))),
    ],
)
def test_names_that_opensearch_can_not_store_are_escaped(fields: tuple[str, ...], stored: tuple[str, ...]) -> None:
    assert names(*fields) == stored


def test_the_index_s_mapping_counts_too() -> None:
    assert names("a", properties={"a": {"properties": {"b": TEXT}}}) == ("a~",)
    assert names("a.b", properties={"a": TEXT}) == ("a~2eb",)
    assert names("a.b.c", "d", properties={"a": {"properties": {"b": {"properties": {"c": TEXT}}}}, "d": TEXT}) == ("a.b.c", "d")
    # The user's mapping of an object is for the field whose values are objects.
    assert stored_names([("a", True)], {"a": {"properties": {"b": TEXT}}}) == ("a",)
    assert stored_names([("a.b", False), ("a", True)], {"a": {"properties": {"b": TEXT}}}) == ("a.b", "a~")


def test_any_names_are_stored_apart_and_stay_the_same(seed: int) -> None:
    random_ = random.Random(seed)
    parts = ["a", "b", "", " ", "_id", "_source", META, "~", "~2e", "~5fid", "A", "é"]
    for _ in range(300):
        fields = list({".".join(random_.choices(parts, k=random_.randrange(1, 4))): None for _ in range(8)})
        properties: dict[str, Any] = {META: {"properties": {"seq": TEXT}}}
        former: tuple[str, ...] = ()
        for count in range(1, len(fields) + 1):
            stored = names(*fields[:count], properties=properties)
            assert stored[: len(former)] == former, "a field that is added renames no other"
            assert len(set(stored)) == count
            paths = [tuple(name.split(".")) for name in stored]
            assert not [(one, other) for one in paths for other in paths if one != other and other[: len(one)] == one]
            assert all(part.strip() for path in paths if len(path) > 1 for part in path)
            assert all(stored)
            assert not {path[0] for path in paths} & {"_id", "_source", META}
            for path in paths:
                merge(properties, nested(list(path), TEXT))
            former = stored


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, mapping in more.items():
        if name in into and "properties" in mapping:
            merge(into[name]["properties"], mapping["properties"])
        else:
            into.setdefault(name, mapping)


def test_fields_are_counted_as_opensearch_does() -> None:
    assert count_of({"a": {"type": "text", "fields": {"keyword": {"type": "keyword"}}}, "b.c": TEXT}) == 4
    assert count_of({"b": {"properties": {"c": TEXT, "d": TEXT}}}) == 3
