"""Every space has a folder of its own, inside the job's, whatever it is called."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.tables.folders import catalog_name, folder
from tests.fakes.profiles import MANY

LETTERS = st.sampled_from("aA1._-~/\\ %=:*?\"'\n\0\x7fйé你")
NAMES = (
    st.text(LETTERS, max_size=5)
    | st.text(max_size=4)
    | st.builds(lambda letter, count, end: letter * count + end, LETTERS, st.integers(80, 260), st.text(LETTERS, max_size=1))
    | st.sampled_from([".", "..", "...", "a/b", "a_b", "../a", "~", "~~", "~2e", "a~2fb", "_delta_log", "_samples", ""])
)


@MANY
@given(NAMES, NAMES)
def test_a_folder_is_one_spaces_and_safe(one: str, other: str) -> None:
    found = folder(one)
    assert (found == folder(other)) == (one == other)
    assert re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", found)
    assert len(found) <= 255
    assert PurePosixPath("tables", found).parent == PurePosixPath("tables")
    assert found not in ("_delta_log", "_samples", "_spark_metadata")


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}", fullmatch=True))
def test_ordinary_names_stay(name: str) -> None:
    assert folder(name) == (name if name not in ("_delta_log", "_samples", "_spark_metadata") else f"~5f{name[1:]}")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("users", "users"),
        ("_user", "_user"),
        ("Users-2.1", "Users-2.1"),
        ("x" * 248, "x" * 248),
        (".", "~2e"),
        ("..", "~2e."),
        ("a/b", "a~2fb"),
        ("é", "~c3~a9"),
        ("~", "~7e"),
        ("", "~"),
        ("_delta_log", "~5fdelta_log"),
    ],
)
def test_some_names(name: str, found: str) -> None:
    assert folder(name) == found


def test_a_name_that_is_too_long_keeps_its_beginning() -> None:
    one, other = folder("й" * 200 + "a"), folder("й" * 200 + "b")
    assert one[:180] == other[:180] == ("~d0~b9" * 200)[:180]
    assert one != other
    assert len(one) == 180 + 2 + 64


@MANY
@given(NAMES, NAMES)
def test_a_name_in_a_catalog_is_one_spaces_whatever_its_letters(one: str, other: str) -> None:
    found = catalog_name(one)
    assert (found == catalog_name(other)) == (one == other)
    assert re.fullmatch(r"[a-z0-9_]{1,120}", found)


def test_names_in_catalogs() -> None:
    assert [catalog_name(name) for name in ("users", "order_items2", "a__0123456789ab", "Users")] == [
        "users",
        "order_items2",
        "a__0123456789ab__bb3e434e6b9b",
        "users__6b0cc904d081",
    ]
