"""What the fields of a space are called over all of its forms."""

from __future__ import annotations

from spark_jobs.contract.forms import Field, Form
from spark_jobs.lake.field_columns import FieldColumns


def form(version: int, *fields: tuple[str, str]) -> Form:
    return Form("users", 512, version, version, ("id",), tuple(Field(*field) for field in fields))


def named(*forms: Form) -> list[tuple[str, str, str]]:
    return [(column.field, column.type, column.name) for column in FieldColumns().with_forms(forms).columns]


def test_a_field_keeps_its_column_and_gets_another_with_another_type() -> None:
    assert named(
        form(1, ("id", "unsigned"), ("size", "int64"), ("name", "string")),
        form(2, ("id", "integer"), ("title", "string"), ("size", "string")),
        form(3, ("id", "integer"), ("size", "double"), ("name", "uuid")),
        form(4, ("size", "int32"), ("id", "uint64")),
    ) == [
        ("id", "decimal(20,0)", "id"),
        ("size", "bigint", "size"),
        ("name", "string", "name"),
        ("title", "string", "title"),
        ("size", "string", "size__string"),
        ("size", "double", "size__double"),
    ]


def test_no_two_columns_have_one_name_for_spark() -> None:
    assert [name for _, _, name in named(
        form(1, ("Id", "string"), ("id", "string"), ("a b", "string"), ("a,b", "string"), ("size__string", "double")),
        form(2, ("size", "double"), ("ID", "string")),
        form(3, ("size", "string")),
    )] == ["Id", "id__2", "a_b", "a_b__2", "size__string", "size", "ID__3", "size__string__2"]  # fmt: skip


def test_what_the_tables_properties_say_is_what_was_chosen() -> None:
    columns = FieldColumns().with_forms([form(1, ("я", "datetime"), ("Я", "varbinary"))])
    assert FieldColumns.from_json(columns.to_json()) == columns
    assert columns.with_forms([form(2, ("Я", "varbinary"))]) == columns
