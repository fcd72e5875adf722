"""Events and keys in Avro → SQL over the structs that Spark's own `from_avro` makes of them.

    a schema's text ─▶ the reader's schema: only the members that a job needs ─▶ from_avro ─▶ a struct ─▶ SQL for each text

Rows and keys become the JSON texts of avro_text.py, byte for byte. Where SQL can't do that, there is no reading: Spark can't tell
fields apart whose names differ only in capitals. At a decimal with more digits than Spark's have, `from_avro` returns null. Such
records are left to avro_text.py. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spark_jobs.contract import json_text
from spark_jobs.contract.avro_names import full_name, is_record, schema_of
from spark_jobs.contract.avro_text import ENVELOPE, JSON, NAME, SCALED, TYPE
from spark_jobs.contract.forms import same_name
from spark_jobs.contract.sql_text import literal, quoted

ROWS: Final = ("before", "after", "patch", "upsert")
"""The members of an envelope that become texts."""

Members = Mapping[str, Collection[str] | None]
"""The members of an envelope that are needed, and of structs that aren't rows the fields that are; None: all."""

_SPECIAL: Final = (JSON, "io.debezium.data.Uuid", "io.debezium.time.ZonedTimestamp", "io.debezium.time.Interval")
"""Names of strings that are JSON, or have no character that JSON escapes."""
_TO_ESCAPE: Final = r'[\x00-\x1f"\\]'
_CODE: Final = r"\u00"
_CAPITALS: Final = ("0B", "0E", "0F", *(f"1{letter}" for letter in "ABCDEF"))
"""Codes of control characters, which `to_json` writes in capitals and the daemon doesn't."""
_SHORTEST: Final = "com.fasterxml.jackson.core.io.schubfach.DoubleToDecimal"
"""Java class of the library that writes JSON for Spark."""
_ONE_DIGIT: Final = {"4.9E-324": "5.0E-324", "9.9E-324": "1.0E-323"}
"""Texts of the doubles for which one digit is enough, and that class writes two."""
_UNSCALED: Final = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}


class _NoSqlError(Exception):
    """No SQL writes these values as the daemon does."""


@dataclass(frozen=True)
class Reading:
    """How the values of one schema are read into a struct: by the schemas of the writer and the reader.

    `texts` has SQL for the texts of rows and patches, by their names in ROWS. `key` is that for the text of a key. `fields` are
    those of the structs that aren't rows.
    """

    writer: str
    reader: str
    texts: Mapping[str, str] = field(default_factory=dict)
    key: str = "null"
    fields: Mapping[str, Collection[str]] = field(default_factory=dict)


def key_reading(schema_text: str, struct: str) -> Reading | None:
    """Return how the keys of a schema are read into the column `struct`; None if no SQL writes them."""
    schema = schema_of(schema_text)
    if not is_record(schema):
        return None
    try:
        return Reading(schema_text, json_text.render(_narrowed(schema)), key=_record(schema, struct))
    except _NoSqlError:
        return None


def event_reading(schema_text: str, members: Members, struct: str) -> Reading | None:
    """Return how the events of a schema are read into the column `struct`, with only these members.

    It is None if the values aren't events with these members (rows may be absent), or if no SQL writes their rows.
    """
    schema = schema_of(schema_text)
    if not is_record(schema) or not schema.get("connect.name", "").endswith(ENVELOPE):
        return None
    known: dict[str, Any] = {}
    found = {member["name"]: _complete(member["type"], known) for member in schema["fields"]}
    if any(name not in found for name in members if name not in ROWS):
        return None
    try:
        texts = {name: _row(found[name], f"{struct}.{name}") for name in ROWS if name in found and name in members}
        narrowed = {name: _narrowed(kind, members[name]) for name, kind in found.items() if name in members}
    except _NoSqlError:
        return None
    if "before" in texts and "patch" in found:
        # Without images it has only the key, for readers that need some row.
        texts["before"] = f"if({struct}.op = 'd', null, {texts['before']})"
    written: set[str] = set()
    fields = [{"name": name, "type": _once(kind, written)} for name, kind in narrowed.items()]
    structs = {
        name: [one["name"] for one in _other(kind)["fields"]]
        for name, kind in narrowed.items()
        if name not in ROWS and isinstance(_other(kind), dict) and _other(kind)["type"] == "record"
    }
    return Reading(schema_text, json_text.render({**_named(schema), "fields": fields}), texts, fields=structs)


# Schemas.


def _complete(schema: Any, known: dict[str, Any]) -> Any:
    """Return a schema with the records that it only names. `known` are those defined so far, by their names."""
    if isinstance(schema, list):
        return [_complete(one, known) for one in schema]
    if isinstance(schema, str):
        return known.get(schema, schema)
    if schema["type"] != "record":
        return schema
    found = {**schema, "fields": [{**one, "type": _complete(one["type"], known)} for one in schema["fields"]]}
    known[full_name(schema)] = found
    return found


def _narrowed(schema: Any, wanted: Collection[str] | None = None) -> Any:
    """Return what `from_avro` must know of a complete schema, a record's with the wanted fields only."""
    if isinstance(schema, list):
        return [_narrowed(one, wanted) for one in schema]
    if isinstance(schema, str):
        return schema
    if schema["type"] == "map":
        return {"type": "map", "values": _narrowed(schema["values"])}
    if schema["type"] != "record":
        return {name: schema[name] for name in ("type", "logicalType", "precision", "scale") if name in schema}
    if schema.get("connect.name") == SCALED:
        return {**_named(schema), "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": _UNSCALED}]}
    fields = [one for one in schema["fields"] if wanted is None or one["name"] in wanted]
    if len({same_name(one["name"]) for one in fields}) < len(fields):
        raise _NoSqlError("Spark takes some of the fields for the same")
    return {**_named(schema), "fields": [{"name": one["name"], "type": _narrowed(one["type"])} for one in fields]}


def _once(schema: Any, written: set[str]) -> Any:
    """Return a schema that defines each record where it first occurs, and then only names it."""
    if isinstance(schema, list):
        return [_once(one, written) for one in schema]
    if not isinstance(schema, dict) or schema["type"] != "record":
        return schema
    name = full_name(schema)
    if name in written:
        return name
    written.add(name)
    return {**schema, "fields": [{**one, "type": _once(one["type"], written)} for one in schema["fields"]]}


def _named(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("type", "name", "namespace")}


def _other(schema: Any) -> Any:
    """Return the type of an optional field's values."""
    return next(one for one in schema if one != "null") if isinstance(schema, list) else schema


# Texts.


def _row(kind: Any, struct: str) -> str:
    """Return SQL for the text of an optional row, or of a patch, which is JSON already."""
    other = _other(kind)
    return f"if({struct} is null, null, {_record(other, struct)})" if other["type"] == "record" else struct


def _record(schema: Mapping[str, Any], struct: str) -> str:
    """Return SQL for the JSON of a record, whose struct isn't null."""
    fields = [(one.get(NAME, one["name"]), f"{struct}.{quoted(one['name'])}", one["type"]) for one in schema["fields"]]
    texts = [value for _, value, kind in fields if _is_any_text(_other(kind))]
    quick = _object(fields, lambda value: f"concat('\"', {value}, '\"')")
    if not texts:
        return quick
    # One search in all texts together. Nearly always there is nothing to escape.
    return f"if(concat_ws('', {', '.join(texts)}) rlike {literal(_TO_ESCAPE)}, {_object(fields, _escaped)}, {quick})"


def _object(fields: Sequence[tuple[str, str, Any]], string: Callable[[str], str]) -> str:
    """Return SQL for the JSON of a record with these fields: name, value, and type. `string` writes those of any text."""
    pieces = []
    for number, (name, value, kind) in enumerate(fields):
        text = string(value) if _is_any_text(_other(kind)) else _text(_other(kind), value)
        label = literal(f"{',' if number else '{'}{json_text.render(name)}:")
        pieces += [label, f"coalesce({text}, 'null')" if isinstance(kind, list) else text]
    return f"concat({', '.join(pieces)}, '}}')" if pieces else "'{}'"


def _is_any_text(kind: Any) -> bool:
    """Return whether a type's values are strings with any characters."""
    if isinstance(kind, str):
        return kind == "string"
    return kind["type"] == "string" and kind.get("connect.name") not in _SPECIAL and _parameter(kind) != "unsigned"


def _escaped(value: str) -> str:
    # `{"":"…"}`, of which `"…"` is wanted.
    text = f"to_json(named_struct('', {value}))"
    found = f"substring({text}, 5, length({text}) - 5)"
    codes = found
    for digits in _CAPITALS:
        pattern, small = rf"(?<!\\)((?:\\\\)*)\\u00{digits}", rf"$1\\u00{digits.lower()}"
        codes = f"regexp_replace({codes}, {literal(pattern)}, {literal(small)})"
    return f"if(contains({found}, {literal(_CODE)}), {codes}, {found})"


def _text(kind: Any, value: str) -> str:
    """Return SQL for the JSON of a value; null for null."""
    if isinstance(kind, str):
        kind = {"type": kind}
    name, base = kind.get("connect.name"), kind["type"]
    if name == SCALED:
        return _scaled(value)
    if name == JSON or _parameter(kind) == "unsigned":
        return value  # the text is JSON already
    if base == "string":
        return f"concat('\"', {value}, '\"')"
    if base in ("int", "long", "boolean") or kind.get("logicalType") == "decimal":
        return f"cast({value} as string)"
    if base == "bytes":
        return f"concat('\"', base64({value}), '\"')"
    if base in ("float", "double"):
        return _double(f"cast({value} as double)")
    raise _NoSqlError(f"values of the type {base}")


def _double(value: str) -> str:
    """Return SQL for the shortest text of a double, as Python and the daemon write it."""
    # Java's own is longer than needed for some numbers, before Java 19.
    text = f"java_method('{_SHORTEST}', 'toString', {value})"
    for two_digits, one in _ONE_DIGIT.items():
        text = f"replace({text}, '{two_digits}', '{one}')"
    exponent = f"cast(substring_index({text}, 'E', -1) as int)"
    mantissa = f"regexp_replace(substring_index({text}, 'E', 1), '\\\\.0$', '')"
    digits = f"rtrim('0', cast(cast({text} as decimal(38, if_scale)) as string))"
    large = f"regexp_replace({digits.replace('if_scale', '10')}, '\\\\.$', '.0')"
    small = digits.replace("if_scale", "30")
    return (
        f"case when {value} is null then null when isnan({value}) then '\"NaN\"'"
        f" when abs({value}) = double('Infinity') then if({value} > 0, '\"Infinity\"', '\"-Infinity\"')"
        f" when not contains({text}, 'E') then {text} when {exponent} between 1 and 15 then {large}"
        f" when {exponent} between -5 and -1 then {small} else concat({mantissa}, 'e', {exponent}) end"
    )


def _scaled(value: str) -> str:
    """Return SQL for the text of a decimal with its own scale."""
    digits, scale = f"cast(abs({value}.value) as string)", f"{value}.scale"
    padded = f"lpad({digits}, greatest(length({digits}), {scale} + 1), '0')"
    point = f"concat(left({padded}, length({padded}) - {scale}), '.', right({padded}, {scale}))"
    whole = f"if({value}.value = 0, '0', concat({digits}, repeat('0', -{scale})))"
    return f"concat(if({value}.value < 0, '\"-', '\"'), if({scale} > 0, {point}, {whole}), '\"')"


def _parameter(kind: Mapping[str, Any]) -> str | None:
    found: str | None = kind.get("connect.parameters", {}).get(TYPE)
    return found
