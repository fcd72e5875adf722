"""Schema records to forms and columns."""

from __future__ import annotations

import pytest

from cdc.stream.batches.batch import Broadcast
from spark_jobs.contract.forms import Form, Forms
from spark_jobs.errors import JobError
from tests.fakes.master import Master
from tests.fakes.replica import Replica
from tests.spark.messages import COLUMNS, golden, schema

pytestmark = pytest.mark.spark


def forms(*records: str | None) -> Forms:
    return Forms("shop.schema", [record for record in records if record is not None])


def test_golden_records_give_the_forms_of_a_space() -> None:
    names = ("schema-create", "schema-alter", "schema-rename", "schema-drop")
    create, alter, rename, drop = (golden(name)[0].value for name in names)
    found = forms(create, alter, rename)
    first = found.of(512, 1)
    assert (first.space, first.seq, first.key) == ("users", 0, ("id",))
    assert first.columns() == {"id": "decimal(20,0)", "name": "string", "balance": "decimal(37,18)", "balance__exact": "string"}
    assert [form.space for form in found.histories()[0]] == ["users", "users", "people"]
    assert found.alive() == ["people"]
    assert found.latest("users") == found.of(512, 2)
    assert forms(create, alter, rename, drop).alive() == []


def test_forms_survive_a_tables_properties() -> None:
    form = forms(golden("schema-alter")[0].value).of(512, 2)
    assert Form.from_json(form.to_json()) == form


def test_a_sized_decimal_has_the_scale_that_the_format_says() -> None:
    tuple_format = [{"name": "id", "type": "unsigned"}, {"name": "price", "type": "decimal32", "scale": 2}]
    master = Master("3.3")
    master.create_space("goods", tuple_format)
    replica = Replica(master)
    replica.connect()
    replica.commit()
    (record,) = (one for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.schema")
    (form,) = forms((record[2] or b"").decode()).histories()[0]
    assert form.columns() == {"id": "decimal(20,0)", "price": "decimal(9,2)"}
    assert Form.from_json(form.to_json()) == form
    assert form.comments() == {"id": "id (unsigned)", "price": "price (decimal32, scale 2)"}


def test_an_unknown_form_is_an_error_that_names_it() -> None:
    with pytest.raises(JobError, match="space 512 at schema_version 9"):
        forms(schema(0).value).of(512, 9)


def test_what_is_no_schema_record_is_refused() -> None:
    with pytest.raises(JobError, match="no schema record"):
        forms('{"a":1}')


def test_columns_get_names_that_tables_can_have() -> None:
    names = ("ID", "_row", "a b;c", "a_b_c", "a`b", "_deleted")
    form = forms(schema(0, columns=[("id", "unsigned"), *((name, "string") for name in names)]).value).of(512, 1)
    assert form.column_names() == ("id", "ID__2", "_row__3", "a_b_c", "a_b_c__5", "a_b", "_deleted__7")


def test_names_that_java_takes_for_one_get_columns_of_their_own() -> None:
    alike = ["k", "\u212a", "s", "\u017f", "i", "\u0131", "\u0130", "\u00b5", "\u03bc", "\u03c3", "\u03c2", "\u00df", "ss"]
    form = forms(schema(0, columns=[(name, "string") for name in alike]).value).of(512, 1)
    second = (2, 4, 6, 7, 9, 11)
    assert form.column_names() == tuple(f"{name}__{n}" if n in second else name for n, name in enumerate(alike, 1))


def test_a_form_covers_those_that_only_add_fields() -> None:
    longer = [*COLUMNS, ("city", "string")]
    cases = [
        schema(0, columns=longer, version=2),
        schema(0, columns=[("id", "integer"), *longer[1:]], version=3),  # another type with the same column
        schema(0, columns=[("id", "int64"), *longer[1:]], version=4),
        schema(0, columns=[longer[0], ("title", "string"), *longer[2:]], version=5),
        schema(0, columns=longer[:2], version=6),
        schema(0, key=("id", "name"), version=7),
        schema(0, as_written=("id",), version=8),
        schema(0, space="people", version=9),
        schema(0, space_id=600, version=10),
    ]
    first = forms(schema(0).value).of(512, 1)
    others = [form for history in forms(*(case.value for case in cases)).histories() for form in history]
    assert [form.schema_version for form in (first, *others) if first.covers(form)] == [1, 2, 3]
