"""Which daemon owns a topic, by the records of its schema topic."""

from __future__ import annotations

import json
from typing import Any

from cdc.stream.commits.owned_topics import NOTHING, owned


def record(name: str, space: str, former: str | None = None) -> bytes:
    change: dict[str, Any] = {"type": "CREATE", "id": f'"{space}"', "table": None}
    if former is not None:
        change["previousId"] = f'"{former}"'
    return json.dumps({"source": {"name": name, "table": space}, "tableChanges": [change]}).encode()


def test_every_space_under_all_of_its_names() -> None:
    found = owned("shop", [record("shop", "users"), record("shop", "people", "users"), record("shop", 'a"b c')])
    assert found == ("shop", frozenset({"users", "people", "a_b_c"}))


def test_topics_with_other_names_than_their_spaces() -> None:
    routed = json.loads(record("shop", "orders_a", "orders_b"))
    routed["tableChanges"][0]["topic"] = "orders"
    found = owned("shop", [record("shop", "users"), json.dumps(routed).encode()])
    assert found == ("shop", frozenset({"users", "orders"}))


def test_a_copy_under_another_prefix_has_the_name_of_its_daemon() -> None:
    assert owned("dc1.shop", [record("shop", "users")]) == ("shop", frozenset({"users"}))


def test_what_others_wrote_says_nothing() -> None:
    strange = [b"", b"no JSON", b"[]", b'{"source":{"name":"other"}}', b'{"source":{"name":"other"},"tableChanges":[]}', b"\xff"]
    assert owned("shop", strange) == NOTHING
    assert owned("shop", [record("shop", "users"), record("other", "orders"), *strange]) == ("shop", frozenset({"users"}))
