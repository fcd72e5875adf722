"""The lines of `watch`: every kind of event as JSON and as text, cut to a width, and safe to print."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cdc.commands.watch_lines import ASCII_GLYPHS, Glyphs, TextLines, glyphs_for, json_lines, refused_rows
from cdc.events.json_values import encode
from cdc.events.topics import DLQ, SNAPSHOT, SpaceNames
from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes.golden import ROOT
from tests.fakes.profiles import SOME

NAMES = SpaceNames("watch")


def published(*names: str) -> Iterator[Message]:
    """Messages of the contract, in these files, under the names that `watch` gives topics."""
    for name in names:
        for line in (ROOT / "golden" / "published" / f"{name}.jsonl").read_text().splitlines():
            message = json.loads(line)
            topic = message["topic"].removeprefix("shop.")
            is_space = message["value"] is not None and "op" in message["value"]
            key, value = (None if each is None else encode(each) for each in (message["key"], message["value"]))
            yield NAMES.of_space(1, topic) if is_space else NAMES.control(topic) if value else topic, key, value


def event(
    op: str, *, before: Any = None, after: Any = None, transaction: str | None = None, ts_ms: int = 0, **rest: Any
) -> Message:
    """A message of the space `users`, whose key is `id`."""
    row = after or before or {"id": 1}
    value = {
        "op": op,
        "before": before,
        "after": after,
        **rest,
        "source": {"table": "users", "snapshot": "true" if op == "r" else "false", "ts_ms": ts_ms},
        "transaction": None if transaction is None else {"id": transaction},
    }
    return "users", encode({"id": row["id"]}), encode(value)


def text(*messages: Message | Broadcast, width: int | None = None, has_colour: bool = False, glyphs: Glyphs | None = None) -> str:
    return TextLines(glyphs or Glyphs(), has_colour=has_colour, width=lambda: width)(messages)


def row(line: str) -> str:
    """A line without its time."""
    return line[13:]


def test_json_lines_are_the_values_as_kafka_gets_them() -> None:
    messages = list(published("c", "u-replace", "r", "t"))
    assert json_lines(messages) == b"".join(value + b"\n" for _, _, value in messages if value is not None)


def test_a_json_line_has_the_key_if_the_event_has_no_row() -> None:
    deleted, tombstone = published("d-and-tombstone")
    assert json_lines([deleted, tombstone]) == b'{"key":{"id":3},' + (deleted[2] or b"")[1:] + b"\n"
    for message in published("u-patch"):
        assert json.loads(json_lines([message])) == {"key": json.loads(message[1] or b""), **json.loads(message[2] or b"")}


def test_records_of_control_topics_make_no_json_lines() -> None:
    assert json_lines(published("schema-create", "snapshot", "transaction")) == b""


def test_a_truncation_is_one_line() -> None:
    (message,) = published("t")
    assert json_lines([Broadcast(message[0], message[2] or b"")]) == (message[2] or b"") + b"\n"
    assert row(text(Broadcast(message[0], message[2] or b""))) == "  x users  all rows are gone\n"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (event("c", after={"id": 1, "name": "Ann", "balance": 10}), '+ users  1  name "Ann" · balance 10'),
        (event("r", after={"id": 1, "name": None}), "• users  1  name null"),
        (event("d", before={"id": 1, "name": "Ann"}), '- users  1  name "Ann"'),
        (event("d"), "- users  1"),
        (
            event("u", before={"id": 1, "name": "Ann", "n": 1}, after={"id": 1, "name": "Bob", "n": 1}),
            '~ users  1  name "Ann" → "Bob"',
        ),
        (event("u", before={"id": 1, "n": None}, after={"id": 1}), "~ users  1  n null → (none)"),
        (event("u", before={"id": 1}, after={"id": 1, "n": None}), "~ users  1  n (none) → null"),
        (event("u", before={"id": 1}, after={"id": 1}), "~ users  1  (nothing has changed)"),
        (event("u", after={"id": 1, "name": "Ann"}), '~ users  1  name "Ann"'),
        (
            event(
                "u",
                patch=[
                    {"op": "+", "field": "n", "value": 5},
                    {"op": ":", "field": "name", "position": 2, "length": 3, "value": "X"},
                    {"op": "=", "field": "data", "path": ".a[2]", "value": 42},
                ],
                upsert={"id": 1, "n": 2},
            ),
            '~ users  1  n + 5 · name : 2 3 "X" · data.a[2] = 42 · or insert n 2',
        ),
    ],
)
def test_operations(message: Message, shown: str) -> None:
    assert row(text(message)).strip() == shown


def test_a_key_of_several_parts() -> None:
    topic, _, value = event("c", after={"id": 1, "line": 2, "n": 3})
    assert "(1, 2)  n 3" in text((topic, encode({"id": 1, "line": 2}), value))


def test_schema_records_of_the_stream_are_shown() -> None:
    (topic, key, value), *_ = published("schema-create")
    record = json.loads(value or b"")
    record["source"]["snapshot"] = "false"
    assert "users  new space: id unsigned" in text((topic, key, encode(record)))
    record["tableChanges"][0] |= {"type": "ALTER", "previousId": '"a "quoted" name"'}
    assert 'new form, formerly a "quoted" name: ' in text((topic, key, encode(record)))
    assert "people  new form, formerly users: " in text(*published("schema-rename"))
    assert "the space is gone" in text(*published("schema-drop"))


def test_schema_records_of_a_snapshot_are_no_news() -> None:
    assert text(*published("schema-create")) == ""


def test_transactions_of_several_changes_are_bracketed() -> None:
    lines = TextLines(Glyphs(), has_colour=False, width=lambda: None)

    def gutters(*transactions: str | None, is_whole: bool = True) -> str:
        messages = [event("c", after={"id": 1}, transaction=each) for each in transactions]
        return "".join(line[13] for line in lines(messages, is_whole=is_whole).splitlines())

    assert gutters("1:1", "1:2", "1:2", "1:3", "1:3", "1:3", None, None) == " ┌└┌│└  "
    assert gutters("1:4", "1:5", is_whole=False) == " ┌"
    assert gutters(is_whole=False) == ""
    assert gutters("1:5", "1:5", is_whole=False) == "││"
    assert gutters("1:5", "1:6") == "└ "
    assert gutters("1:6") == " "


def test_the_time_is_shown_when_it_changes() -> None:
    first, second, third, fourth = text(
        event("c", after={"id": 1}, ts_ms=1000),
        event("c", after={"id": 2}, ts_ms=1000),
        event("r", after={"id": 3}, ts_ms=7777),
        event("c", after={"id": 4}, ts_ms=2005),
    ).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:01\.000", first[:12])
    assert second[:12] == third[:12] == " " * 12
    assert fourth[6:12] == "02.005"


def test_columns_are_as_wide_as_the_expected_names() -> None:
    lines = TextLines(Glyphs(), has_colour=False, width=lambda: None, spaces=["users", "order_lines"])
    assert "+ users        1" in lines([event("c", after={"id": 1})])


def test_colours_are_ended_on_each_line() -> None:
    shown = text(event("c", after={"id": 1, "name": "Ann"}), has_colour=True)
    assert "\x1b[1;32m+" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == text(event("c", after={"id": 1, "name": "Ann"}))
    for line in text(event("c", after={"id": 1, "name": "x" * 200}), has_colour=True, width=40).splitlines():
        assert line.rindex("\x1b[0m") >= max(match.start() for match in re.finditer(r"\x1b\[[1-9]", line))


@SOME
@given(st.text(max_size=40), st.integers(20, 60))
def test_lines_fit_and_no_terminal_obeys_them(value: str, width: int) -> None:
    """Whatever is in a row, a key, or a name."""
    name = "n" + value
    message = event("c", after={"id": value.encode("utf-8", "replace").decode(), name: [value, {value: value}]})
    topic, key, found = message
    for glyphs in (Glyphs(), ASCII_GLYPHS):
        line, rest = text((topic, key, found), width=width, glyphs=glyphs).rsplit("\n", 1)
        assert not rest
        assert cell_len(line) <= width
        assert not {unicodedata.category(character) for character in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_outputs_without_such_characters_get_others() -> None:
    assert glyphs_for("utf-8") == Glyphs()
    assert glyphs_for("ascii") == glyphs_for("no such encoding") == ASCII_GLYPHS
    "".join(ASCII_GLYPHS).encode("ascii")


def test_rows_that_have_no_event_are_reported() -> None:
    letter = encode({"replica_id": 1, "lsn": 7, "error": "it is odd", "type": "INSERT", "space_id": 513})
    messages = [*published("c", "snapshot"), (NAMES.control(DLQ), b"{}", letter)]
    assert list(refused_rows(messages)) == ["a row can't be shown (space id 513, INSERT): it is odd"]


def test_a_space_may_have_any_name() -> None:
    assert NAMES.of_space(513, SNAPSHOT) == NAMES.of_space(514, SNAPSHOT) == "snapshot"
    assert NAMES.of_space(515, "a b") == "a b"
    assert NAMES.control(SNAPSHOT) != "snapshot"
