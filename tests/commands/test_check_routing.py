"""`check` tells before a start where rows would go, and which rules can't be applied."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.commands import check
from cdc.config import parse
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.commits.checkpoint import Checkpoint

FORMAT = [{"name": "id", "type": "unsigned"}, {"name": "status", "type": "string"}]


def checked(names: list[str], routing: dict[str, Any], images: str = "full") -> tuple[list[str], list[tuple[str, bool]]]:
    """What is said of each space, and the findings, with whether they are failures."""
    values = {
        "name": "shop",
        "source": {"uris": ["127.0.0.1:3301"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"},
        "state": {"images": images},
        "routing": routing,
    }
    spaces = [
        StoredSpace(number, [number, 1, name, "memtx", 0, {}, FORMAT], {0: [number, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 0)
        for number, name in enumerate(names, 512)
    ]
    said: list[str] = []
    findings = check._published(
        parse(values, "the test"), SchemaTracker(spaces), None, Checkpoint(), lambda line: said.append(str(line))
    )
    found = [(finding.sentence, finding.is_failure) for finding in findings]
    return [line.partition(" (Kafka")[0] for line in said], found


def test_where_rows_would_go() -> None:
    rules = [{"spaces": "orders_.*", "topic": "orders"}, {"spaces": "orders_a", "topic": "a"}, {"spaces": "x", "topic": "y"}]
    said, found = checked(["orders_a", "orders_b", "users"], {"topic": "v2.{space}", "rules": rules})
    assert said == [
        "orders_a (space id 512) to shop.orders",
        "orders_b (space id 513) to shop.orders",
        "users (space id 514) to shop.v2.users",
    ]
    (shadowed, _), (unused, _) = found
    assert "for spaces = 'orders_a' (number 2) applies to no space: for those that it matches, a rule before it" in shadowed
    assert "for spaces = 'x' (number 3) matches no published space" in unused
    assert not any(is_failure for _, is_failure in found)


@pytest.mark.parametrize(
    ("names", "rule", "images", "problem"),
    [
        (["a.b", "a_b"], {"spaces": "x", "where": "true"}, "full", "Kafka doesn't distinguish dots and underscores"),
        (["a", "b"], {"spaces": "a", "topic": "b"}, "full", "would share 'shop.b'"),
        (["a"], {"spaces": "a", "where": "row.stat == 'x'"}, "full", "reads the field 'stat', which the space doesn't have"),
        (["a"], {"spaces": "a", "partition_by": ["stat"]}, "full", "has no field 'stat'"),
        (["a"], {"spaces": "a", "where": "row.status == 'x'"}, "none", "reads 'status' of space 'a', and without images"),
    ],
)
def test_what_would_be_refused(names: list[str], rule: dict[str, Any], images: str, problem: str) -> None:
    _, found = checked(names, {"rules": [rule]}, images)
    assert [problem in sentence for sentence, is_failure in found if is_failure] == [True]
