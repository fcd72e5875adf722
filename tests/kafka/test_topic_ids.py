"""Ids of topics from run to run: which have changed, and of which that can't be said."""

from __future__ import annotations

from cdc.kafka.topic_ids import KnownIds


def test_what_has_changed_and_what_is_kept() -> None:
    kept: list[dict[str, str]] = []
    ids = KnownIds({"a": "1", "b": "2"}, ["first", "second"], lambda now: kept.append(dict(now)))
    ids.begin("second")
    assert ids.changed({"a": "1", "b": "3", "c": "4"}) == {"b"}
    ids.learn_new({"b": "3", "c": "4"})
    assert ids.changed({"b": "3"}) == {"b"}, "it is told by the next look"
    ids.learn({"a": "1"})
    ids.learn({"b": "3"})
    assert ids.changed({"b": "3"}) == set()
    ids.forget(["b", "d"])
    ids.forget(["b"])
    assert ids.changed({"b": "5"}) == set()
    assert kept == [{"a": "1", "b": "2", "c": "4"}, {"a": "1", "b": "3", "c": "4"}, {"a": "1", "c": "4"}]


def test_another_process_has_had_the_name_since() -> None:
    """It has told of topics that were made again, or made them itself: the ids of the run before say nothing."""
    ids = KnownIds({"a": "1"}, ["first"])
    ids.begin("another")
    assert ids.changed({"a": "2"}) == set()
    ids.learn({"a": "2"})
    ids.begin("another")
    assert ids.changed({"a": "3"}) == {"a"}, "what this process has learned counts"
