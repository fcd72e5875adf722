"""Names of topics, and which spaces are published."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ConfigurationError
from cdc.events.topics import CONTROL, SpaceFilter, TopicNames
from tests.fakes.profiles import MANY


@pytest.mark.parametrize(
    ("space", "topic"),
    [
        ("users", "shop.users"),
        ("Users_2-a.b", "shop.Users_2-a.b"),
        ("two words", "shop.two_words"),
        ("ключ", "shop.____"),
        ("a/b:c", "shop.a_b_c"),
    ],
)
def test_names(space: str, topic: str) -> None:
    assert TopicNames("shop").of_space(513, space) == topic


@MANY
@given(st.text(min_size=1, max_size=60))
def test_every_name_is_one_that_kafka_takes(name: str) -> None:
    names = TopicNames("shop")
    if re.sub(r"[^A-Za-z0-9._-]", "_", name) in CONTROL:
        return
    topic = names.of_space(513, name)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic)
    assert names.of_space(513, name) == topic


def test_two_spaces_of_one_topic() -> None:
    names = TopicNames("shop")
    names.of_space(513, "a b")
    with pytest.raises(ConfigurationError, match=r"'a/b' \(514\) would share 'shop.a_b', the topic of space 513.*exclude"):
        names.of_space(514, "a/b")
    names.of_space(513, "a b")
    names.release(513)
    assert names.of_space(514, "a/b") == "shop.a_b"


@pytest.mark.parametrize("name", sorted(CONTROL))
def test_space_called_like_a_control_topic(name: str) -> None:
    names = TopicNames("shop")
    with pytest.raises(ConfigurationError, match="a control topic of this daemon"):
        names.of_space(513, name)
    assert names.control(name) == f"shop.{name}"


def test_topic_that_is_too_long() -> None:
    assert len(TopicNames("shop").of_space(513, "x" * 244)) == 249
    with pytest.raises(ConfigurationError, match="250 characters, Kafka allows 249"):
        TopicNames("shop").of_space(513, "x" * 245)


def test_a_release_frees_only_the_space_own_topics() -> None:
    names = TopicNames("shop")
    names.of_space(513, "a")
    names.of_space(514, "b")
    names.release(513)
    with pytest.raises(ConfigurationError):
        names.of_space(515, "b")


@pytest.mark.parametrize(
    ("include", "exclude", "yes", "no"),
    [
        ([".*"], [], ["users", "a b", ""], []),
        (["users"], [], ["users"], ["users2", "xusers", "Users"]),
        (["a.*", "b"], ["ab.*"], ["a", "ac", "b"], ["ab", "abc", "c"]),
        ([".*"], ["us"], ["users", "bus"], ["us"]),
        ([], [], [], ["users"]),
        ([".*"], [".*"], [], ["users"]),
    ],
)
def test_filter(include: list[str], exclude: list[str], yes: list[str], no: list[str]) -> None:
    is_published = SpaceFilter(include, exclude)
    assert [name for name in yes + no if is_published(512, name)] == yes


def test_system_spaces_must_be_named() -> None:
    everything = SpaceFilter([".*"], [])
    assert not everything(280, "_space")
    assert everything(512, "_mine"), "only the number tells Tarantool's own spaces"
    named = SpaceFilter([".*", "_user", "_p.*"], ["_priv"])
    assert [name for name in ("_user", "_priv", "_public", "_space") if named(304, name)] == ["_user", "_public"]
    assert not SpaceFilter(["(_user)"], [])(304, "_user")
