"""The list of topics as people and programs get it."""

from __future__ import annotations

from cdc.commands.topics import Topic, readable


def test_a_line_for_each_topic() -> None:
    found = [Topic("shop.users", 4, 1200, 77, {"spark": 5, "audit": 0}), Topic("shop.checkpoint", 1, 3)]
    head, users, checkpoint = readable(found)
    assert head.split()[:3] == ["topic", "partitions", "records"]
    assert users.split() == ["shop.users", "4", "1200", "77", "audit", "0,", "spark", "5"]
    assert checkpoint.split() == ["shop.checkpoint", "1", "3", "-", "-"]


def test_no_topics() -> None:
    assert list(readable([])) == ["there are no topics of this prefix yet"]
