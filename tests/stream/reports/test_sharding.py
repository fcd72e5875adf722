"""Spaces that aren't sharded, among topics that all shards write."""

from __future__ import annotations

from typing import Any

from cdc.config.routing import RoutingRuleSection
from cdc.formats.options import FormatOptions
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.options import PipelineOptions
from cdc.stream.reports.sharding import doubts
from tests.fakes import pipelines

PK = [0, 0, "pk", "tree", {}, [[0, "unsigned"]]]


def space(space_id: int, name: str, *indexes: list[Any], version: int = 1) -> StoredSpace:
    rows = {number: [space_id, number, *row[2:]] for number, row in enumerate((PK, *indexes))}
    return StoredSpace(space_id, [space_id, 1, name, "memtx", 0, {}, []], rows, version)


def index(name: str, *parts: Any) -> list[Any]:
    return [0, 1, name, "tree", {}, list(parts)]


BUCKETS = space(512, "_bucket", version=0)
SHARDED = [
    space(513, "orders", index("bucket_id", {"field": 1, "type": "unsigned"})),
    space(514, "users", index("other", [2, "string"]), index("bucket_id", [1, "NUM"], [0, "unsigned"])),
]
OTHERS = [
    space(515, "marker"),
    space(516, "by_text", index("bucket_id", [1, "string"])),
    space(517, "left_out", version=0),
]


def options(**changed: Any) -> PipelineOptions:
    formats = FormatOptions(shard="s1")
    return pipelines.options(formats=formats, control_prefix="shop.s1", shards=("s1", "s2"), **changed)


def test_spaces_that_are_not_sharded_are_named() -> None:
    found = doubts(options(), [BUCKETS, *SHARDED, *OTHERS])
    assert [(doubt.sentence.split()[2], doubt.loses_rows) for doubt in found] == [("'marker'", True), ("'by_text'", True)]
    assert 'topic = "{shard}.{space}"' in found[0].sentence


def test_a_rule_says_that_it_is_meant() -> None:
    """A rule about something else doesn't."""
    meant = RoutingRuleSection(spaces="mark.*", topic="{space}")
    (found,) = doubts(options(routing_rules=(meant,)), [BUCKETS, *OTHERS])
    assert "'by_text'" in found.sentence
    other = RoutingRuleSection(spaces=".*", partition_by=["id"])
    assert len(doubts(options(routing_rules=(other, meant)), [BUCKETS, *OTHERS])) == 2


def test_without_buckets_no_space_is_sharded() -> None:
    """One sentence names them all, with a rule for all, whatever indexes they have."""
    (found,) = doubts(options(), [*SHARDED, *OTHERS])
    assert found.loses_rows
    assert found.sentence.startswith(
        "the replica set has no space '_bucket', so the spaces 'orders', 'users', 'marker', 'by_text'"
    )
    assert 'spaces = "orders|users|marker|by_text" and topic = "{shard}.{space}"' in found.sentence
    (found,) = doubts(options(), [space(515, "a.b")])
    assert "the space 'a.b' isn't sharded by vshard" in found.sentence
    assert r'spaces = "a\\.b"' in found.sentence
    meant = RoutingRuleSection(spaces=".*", topic="{space}")
    assert doubts(options(routing_rules=(meant,)), [*SHARDED, *OTHERS]) == []
    assert doubts(options(topic_template="s1.{space}"), OTHERS) == [], "each shard has a topic of its own"
    assert doubts(pipelines.options(), OTHERS) == [], "no fleet"


def test_moves_that_cannot_be_marked() -> None:
    apart = pipelines.options(formats=FormatOptions(shard="s1", marks_moves=True))
    (found,) = doubts(apart, [BUCKETS, *SHARDED])
    assert ("'_bucket' isn't published" in found.sentence, found.loses_rows) == (True, False)
    (found,) = doubts(options(optional_topics=frozenset({"buckets"})), [BUCKETS, *SHARDED])
    assert found.loses_rows, "in shared topics, where one key is one row"
    assert doubts(apart, [space(512, "_bucket"), *SHARDED]) == []


def test_where_there_is_nothing_to_doubt() -> None:
    assert doubts(options(topic_template="s1.{space}"), [BUCKETS, *OTHERS]) == [], "each shard has a topic of its own"
    assert doubts(pipelines.options(), [BUCKETS, *OTHERS]) == [], "no fleet"
