"""Names of keys, and their vbuckets."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.events.json_values import encode
from cdc.feeds.tap.keys import KeyTemplate, joined, vbucket_of

PARTS = (
    st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.booleans() | st.dictionaries(st.just("decimal"), st.just("0.1"))
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), PARTS, min_size=1, max_size=3))
def test_a_key_is_its_values_joined(key: dict[str, Any]) -> None:
    texts = [value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in key.values()]
    assert joined(encode(key)).decode() == ":".join(texts)


@pytest.mark.parametrize(
    ("template", "row", "expected"),
    [
        ("{space}:{key}", {"id": 7}, b"users:7"),
        ("{key}", {"id": 7}, b"7"),
        ("user:{id}", {"id": 7}, b"user:7"),
        ("{name}/{id}", {"id": 7, "name": "\u00e4{id}"}, "\u00e4{id}/7".encode()),
        ("{space}:{key}:v2", {"id": 7}, b"users:7:v2"),
    ],
)
def test_templates(template: str, row: dict[str, Any], expected: bytes) -> None:
    made = KeyTemplate(template, "users")
    assert made.of_row(b'{"id":7}', encode(row)) == expected
    if not made.needs_row:
        assert made.of_key(b'{"id":7}') == expected


def test_a_row_without_the_field_is_named() -> None:
    told = list[tuple[str, str]]()
    made = KeyTemplate("{id}/{name}", "users", lambda *missing: told.append(missing))
    assert made.of_row(b'{"id":7}', b'{"id":7}') is None
    assert told == [("users", "name")]
    assert made.of_row(b'{"id":7}', b'{"id":7,"name":null}') == b"7/null"
    assert len(told) == 1


def test_vbuckets_are_those_of_memcacheds_clients() -> None:
    # libcouchbase's and spymemcached's own example: crc32 of the key, its upper half, fifteen bits of it.
    for key in (b"", b"hello", b"users:1"):
        assert vbucket_of(key, 1023) == ((zlib.crc32(key) >> 16) & 0x7FFF) % 1024
    assert vbucket_of(b"hello", 1023) == (0x3610A686 >> 16) & 1023
    assert {vbucket_of(b"%d" % number, 15) for number in range(1000)} == set(range(16))
