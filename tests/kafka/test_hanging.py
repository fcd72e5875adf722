"""What other programs write into topics that begin with the daemon's prefix is passed over."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.kafka.hanging import FILLER_KEY, Whose, seq_of

OURS = {"source": {"name": "shop", "seq": 7}}


def test_what_is_ours() -> None:
    assert seq_of(b"{}", json.dumps(OURS).encode(), Whose("shop")) == 7
    assert seq_of(FILLER_KEY, None, Whose("shop")) == 0
    assert seq_of(b'{"id":1}', None, Whose("shop")) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\x00",
        b"null",
        b"7",
        b'"source"',
        b"[]",
        b"[1]",
        b"{}",
        b'{"source":null}',
        b'{"source":[]}',
        b'{"source":{}}',
        b'{"source":{"name":"shop"}}',
        b'{"source":{"name":"shop","seq":"7"}}',
        b'{"source":{"name":"shop","seq":true}}',
        b'{"source":{"name":"shop.eu","seq":7}}',
        b'{"source":{"name":["shop"],"seq":7}}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_ours(value: bytes) -> None:
    assert seq_of(b"key", value, Whose("shop")) is None


@given(st.binary() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(lambda value: json.dumps(value).encode()))
def test_anything_else(value: bytes) -> None:
    assert seq_of(None, value, Whose("shop")) is None
