"""Cache keys made from templates: the keys of a change, of renamed fields and of a truncation."""

from __future__ import annotations

import pytest

from spark_jobs.contract import json_text
from spark_jobs.errors import JobError
from spark_jobs.feeds.keys import DEFAULT, Template, places, stale_keys, with_names


def template(text: str, space: str = "users") -> Template:
    return Template.parsed(text).of(space)


@pytest.mark.parametrize(
    ("text", "key", "rows", "keys"),
    [
        (DEFAULT, '{"id":1}', (), {"users:1"}),
        (DEFAULT, '{"a":"x:y","b":1.50,"c":true,"d":{"decimal":"1"}}', (), {'users:x:y:1.50:true:{"decimal":"1"}'}),
        ("user:{id}", '{"id":18446744073709551615}', ('{"id":0}',), {"user:18446744073709551615"}),
        ("u:{data.user.id}!", '{"data.user.id":"é"}', (), {"u:é!"}),
        ("mail:{mail}", '{"id":1}', ('{"id":1,"mail":"a"}', '{"id":1,"mail":"b"}'), {"mail:a", "mail:b"}),
        ("mail:{mail}:{id}", '{"id":1}', ('{"id":1,"mail":"a"}',), {"mail:a:1"}),
        ("mail:{mail}", '{"id":1}', ('{"id":1,"mail":null}', '{"id":1}'), set()),
        ("{{user}}:{id}", '{"id":1}', (), {"{user}:1"}),
        ("{space}/{id}", '{"id":1}', (), {"users/1"}),
    ],
)
def test_keys_of_a_change(text: str, key: str, rows: tuple[str, ...], keys: set[str]) -> None:
    assert stale_keys(template(text), json_text.parse(key), [json_text.parse(row) for row in rows]) == keys


def test_a_field_that_was_renamed_is_found_in_its_place() -> None:
    forms = [("id", "mail"), ("id", "address", "city"), ("id", "address", "town", "mail")]
    assert places(["id", "address"], forms[0], forms) == {"address": 1}
    assert places(["town", "mail"], forms[0], forms) == {"town": 2}
    assert places(["mail", "id"], forms[1], forms) == {"mail": 3}
    assert places(["nosuch"], forms[2], forms) == {"nosuch": None}
    row = {"id": 1, "mail": "a"}
    assert with_names(row, {"address": 1, "town": 2}) == {"id": 1, "mail": "a", "address": "a"}


@pytest.mark.parametrize("text", ["user", "{space}", "user:{", "user:}", "", "{id}", "{id}:user"])
def test_templates_that_would_not_do_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="template"):
        template(text)


def test_what_a_truncation_takes_is_what_the_template_could_have_made() -> None:
    made = template("{space}:[{a}]*:{b}", "u?s")
    assert made.glob == r"u\?s:\[*\]\*:*"
    assert made.matches("u?s:[1]*:x\ny")
    assert not made.matches("uxs:[1]*:x")
    assert not made.matches("xu?s:[1]*:x")
    assert made.lacks({"a": 1}) == ["b"]
    assert not template(DEFAULT).may_need_rows
