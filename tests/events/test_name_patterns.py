"""Expressions for names: they match as Python's do, in a bounded time."""

from __future__ import annotations

import random
import re
import time

import pytest

from cdc.events.name_patterns import PATTERN_MAX, Budget, NamePattern, PatternError


def matches(pattern: str, name: str) -> bool:
    return NamePattern(pattern, Budget()).matches(name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders", "orders"),
        (".*", ""),
        ("shop.orders", "shop.orders"),
        ("^ord(er|na)s$", "ordnas"),
        (r"shop\.[a-z_]+\d?", "shop.orders_7"),
        (r"[^\d]+", "orders"),
        (r"[]a-]+", "]-a"),
        ("a{2,3}", "aa"),
        ("(?P<x>a)", "a"),
        (r"(?:a|b)*c", "ababc"),
        (r"\$a\$", "$a$"),
        ("a+?b", "aab"),
        ("имя", "имя"),
        ("и.я", "имя"),
    ],
)
def test_matches(pattern: str, name: str) -> None:
    assert matches(pattern, name)
    assert re.fullmatch(pattern, name)
    assert matches(pattern, name + "\0") == bool(re.fullmatch(pattern, name + "\0"))


def test_like_those_of_python(seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(ab)*", "a*", "b+", "a?", "(a|b*c)", "|", r"\w", r"\D"]
    for _ in range(2_000):
        pattern = "".join(rng.choices(pieces, k=rng.randint(1, 6)))
        name = "".join(rng.choices("abc1", k=rng.randint(0, 6)))
        assert matches(pattern, name) == bool(re.fullmatch(pattern, name)), (pattern, name)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*.*.*)*x", "(a*)*b"])
def test_what_takes_python_minutes(pattern: str) -> None:
    began = time.process_time()
    assert not matches(pattern, "a" * 200 + "!")
    assert time.process_time() - began < 1


def test_all_matches_of_a_request_have_one_limit() -> None:
    pattern = NamePattern("(a|b|c|d|e|.)*" * 30, Budget())
    began = time.process_time()
    with pytest.raises(PatternError, match="too long"):
        any(not pattern.matches("a" * 30) for _ in range(100_000))
    assert time.process_time() - began < 10


def test_all_expressions_of_a_request_have_one_limit() -> None:
    budget = Budget()
    began = time.process_time()
    with pytest.raises(PatternError, match="too long"):
        [NamePattern("(a{40}){24}", budget) for _ in range(100_000)]
    assert time.process_time() - began < 10


def test_ten_thousand_spaces_are_within_the_limit() -> None:
    budget = Budget()
    patterns = [NamePattern(rf"shop\.(orders|customers)_{number}\d*", budget) for number in range(10)]
    assert sum(pattern.matches(f"shop.orders_{number}") for number in range(10_000) for pattern in patterns) == 10_000


def test_names_that_are_not_utf_8() -> None:
    assert matches(".*", "shop")
    assert matches("a\\C", "a\udcff")
    assert not matches("a.", "a\udcff")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[a",
        "*",
        "a**",
        "(?=a)",
        r"\1",
        "\\",
        "[\\",
        "(a{900}){900}",
        "((a{30}){30}){30}",
        "a" * (PATTERN_MAX + 1),
        "+",
        "\ud800",
    ],
)
def test_what_is_no_expression(pattern: str) -> None:
    with pytest.raises(PatternError):
        NamePattern(pattern, Budget())
