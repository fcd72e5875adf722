"""OpenSearch documents made of rows: their ids, names, types and content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jobs.contract.forms import Field, Form
from spark_jobs.errors import JobError
from spark_jobs.feeds import documents


def form(version: int, *names: str, kind: str = "unsigned", space: str = "users") -> Form:
    return Form(space, 512, version, 0, names[:1], tuple(Field(name, kind) for name in names))


def own_names(*forms: Form) -> dict[int, tuple[str, ...]]:
    return {one.schema_version: tuple(field.name for field in one.fields) for one in forms}


def test_a_key_is_the_id_unless_it_is_too_long() -> None:
    exact, longer = '{"id":"' + "x" * 503 + '"}', '{"id":"' + "é" * 252 + '"}'
    assert len(exact) == documents.ID_BYTES_MAX
    assert documents.document_id(exact) == exact
    assert len(longer) < documents.ID_BYTES_MAX < len(longer.encode())
    hashed = documents.document_id(longer)
    assert hashed.startswith("sha256:")
    assert len(hashed) == 71
    assert hashed != documents.document_id(longer.replace("é", "è"))


def test_names_of_spaces_are_written_so_that_opensearch_takes_them() -> None:
    assert documents.alias_name("{prefix}-{space}", "Shop", "Users") == "shop-users"
    assert (
        documents.alias_name("{space}", "shop", "a b/ключ,~")
        == "a~20b~2f" + "".join(f"~{byte:02x}" for byte in "ключ".encode()) + "~2c~7e"
    )
    assert documents.index_name("v2-{space}", "shop", 513) == "v2-space-513"
    for template, space in (("{space}", "_users"), ("-{space}", "a"), ("{space}", "x" * 250)):
        with pytest.raises(JobError, match="Choose another --index"):
            documents.alias_name(template, "shop", space)


def test_a_document_is_the_row_to_the_byte_with_what_the_job_notes_in_front() -> None:
    row = '{"id":1,"big":18446744073709551615,"far":1e300,"text":"a\\nb"}'
    written = documents.document(row, 7, 3)
    assert written == '{"_cdc":{"seq":7,"form":3},' + row[1:]
    assert json.loads(documents.document("{}", 7, 3)) == {"_cdc": {"seq": 7, "form": 3}}
    pretty = documents.document('{\n "id": 1\r\n}', 7, 3)
    assert "\n" not in pretty
    assert json.loads(pretty)["id"] == 1
    assert json.loads(documents.mark(7, 3, 99)) == {"_cdc": {"seq": 7, "form": 3, "deleted_at": 99}}


def test_every_type_has_a_mapping_and_containers_are_not_searched() -> None:
    types = ("unsigned", "integer", "number", "decimal", "string", "datetime", "map", "any", "unheard-of")
    names = [f"f{n}" for n in range(len(types))]
    fields = tuple(Field(name, kind) for name, kind in zip(names, types, strict=True))
    made = documents.properties(Form("s", 1, 1, 0, ("f0",), fields), names)
    shown = [made[f"f{n}"]["type"] for n in range(len(types))]
    assert shown == ["unsigned_long", "long", "double", "double", "text", "date", "object", "object", "object"]
    assert made["f6"]["enabled"] is False
    assert made["_cdc"]["properties"]["seq"] == {"type": "long"}
    assert documents.names_of(form(1, "id", "_cdc"), made) == ("id", "~5fcdc")


def test_fields_are_called_as_the_latest_form_calls_them() -> None:
    forms = [
        form(1, "id", "name"),
        form(2, "id", "name", "city"),
        form(4, "id", "title", "city"),
        form(5, "id", "title", "city", "x"),
    ]
    latest = ("id", "title", "city", "x")
    assert documents.labels(forms, latest).keys() == {1, 2, 4}
    names = documents.labels(forms, latest)[2]
    assert documents.relabelled('{"id":1,"name":1e300,"city":"o","x":4,"field_5":5}', names) == (
        '{"id":1,"title":1e300,"city":"o","x":4,"field_5":5}'
    )
    assert documents.renamed_since(forms, own_names(*forms)) == 4
    assert documents.renamed_since(forms[:2], own_names(*forms)) is None
    stored = {"_cdc": {"seq": 9, "form": 1}, "id": 1, "name": "a"}
    assert json.loads(documents.relabelled_source(stored, names, 5)) == {"_cdc": {"seq": 9, "form": 5}, "id": 1, "title": "a"}


def test_swapped_names_are_swapped_once() -> None:
    forms = [form(1, "id", "a", "b"), form(2, "id", "b", "a")]
    assert documents.renamed_since(forms, own_names(*forms)) == 2
    swapped = documents.relabelled_source({"_cdc": {"seq": 1, "form": 1}, "id": 1, "a": "x", "b": "y"}, ("id", "b", "a"), 2)
    # What has the new names says so, and isn't looked for any more: `labelled_before`.
    assert json.loads(swapped) == {"_cdc": {"seq": 1, "form": 2}, "id": 1, "b": "x", "a": "y"}
    assert documents.labelled_before(2)["bool"]["filter"] == [{"range": {"_cdc.form": {"lt": 2}}}]


@pytest.mark.parametrize("made", [None, [], "text", {"_cdc": 1}, {"x": float("nan")}])
def test_what_a_function_makes_must_be_a_dict_that_is_json(made: Any) -> None:
    with pytest.raises((JobError, ValueError), match=r"must return a dict|JSON compliant") as raised:
        documents.of_function(made, 1, 1)
    assert "text" not in str(raised.value)
    assert json.loads(documents.of_function({"a": "é"}, 1, 2)) == {"_cdc": {"seq": 1, "form": 2}, "a": "é"}
