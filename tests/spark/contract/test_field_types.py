"""What becomes of a field's values in SQL."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import field_types
from spark_jobs.contract.field_types import EXACT, NUMERIC, value_of
from spark_jobs.contract.forms import Field, Form
from spark_jobs.contract.row_texts import typed
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.history.intervals import META_COLUMNS, shown
from spark_jobs.history.job import HistorySink
from spark_jobs.lake.field_columns import FieldColumns
from spark_jobs.tables import delta as tables
from spark_jobs.tables.formats import FORMATS
from spark_jobs.tables.places import qualified
from tests.spark.messages import FakeTopics, Message, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

FIELDS: Final = (
    *(Field("id", "unsigned"), Field("balance", "decimal"), Field("rate", "number")),
    *(Field("created", "datetime"), Field("tags", "map")),
)
FORM: Final = Form("accounts", 512, 1, 0, ("id",), FIELDS)
DOCUMENTED: Final = re.findall(r"^```sql\n(.*?)^```", (Path(__file__).parents[3] / "docs" / "spark.md").read_text(), re.M | re.S)


WRITTEN: Final = (
    *("0", "-0", "0.000", "1.50", "1e300", "1.0E300", "NaN", "Infinity", "-Infinity", "true", "x", ""),
    *("1.0E2", "1.5E-7", "1e-18", "1e-19", "1.2345678901234567E-5"),
    *("9999999999999999999", "10000000000000000000", "18446744073709551615", "-9223372036854775808"),
    *(f"{'9' * 19}.{'9' * 18}", f"-{'9' * 38}", f"0.{'9' * 38}", "12345678901234567890.123456789"),
    *(f"0.{'0' * 17}1", f"0.{'0' * 18}1", f"1.{'0' * 30}"),
)


def texts() -> list[str]:
    """The above, and others of every length and notation."""
    chance = random.Random(5)
    found = list(WRITTEN)
    for _ in range(200):
        whole, part = ("".join(chance.choices("0123456789", k=chance.randrange(1, 24))) for _ in range(2))
        number = f"{chance.choice(['', '-'])}{int(whole)}{chance.choice(['', f'.{part}'])}"
        exponent = f"E{chance.choice(['', '-', '+'])}{chance.randrange(20)}"
        found += [number, f"{number}{exponent}", repr(chance.uniform(-1, 1) * 10 ** chance.randrange(-20, 25))]
    return list(dict.fromkeys(found))


def numeric(text: str) -> Decimal | None:
    """The number in a text, if a column holds exactly it."""
    with localcontext() as context:
        context.prec = 200
        try:
            number = Decimal(text)
        except InvalidOperation:
            return None
        fits = number.is_finite() and abs(number) < 10**19 and number == number.quantize(Decimal(10) ** -18)
        return number if fits else None


def test_a_number_is_exactly_in_its_column_or_as_text_beside_it(spark: SparkSession) -> None:
    given = texts()
    read = spark.createDataFrame([(text,) for text in given], "text string")
    frame = read.select(F.map_from_arrays(F.array(F.lit("n")), F.array("text")).alias("f"))
    rows = frame.select(F.expr("f['n']"), *(F.expr(value_of("f", "n", kind)) for kind in (NUMERIC, EXACT))).collect()
    assert [row[0] for row in rows] == given
    for text, number, exact in rows:
        expected = numeric(text)
        assert number == expected, text
        assert exact == (None if number is not None else text), text


@pytest.fixture(params=FORMATS)
def documented(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The tables that the documentation names, made as the jobs make them."""
    catalog = "spark_catalog"
    if request.param == "iceberg":
        catalog = f"documented_{uuid4().hex}"
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": str(tmp_path)}
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{catalog}{name}", value)
    spark.sql(f"USE {catalog}")
    spark.sql("CREATE SCHEMA cdc")
    rows = [
        {"id": 1, "balance": "250.10", "rate": 9, "created": "2024-02-29T23:59:58+03:00", "tags": {"city": "Oslo"}},
        {"id": 2, "balance": "1000.20", "rate": 10},
        {"id": 3, "balance": "99.99", "rate": 0.1},
        {"id": 4, "balance": "0." + "1" * 30, "rate": 1e300},
    ]
    records = [(f'{{"id":{row["id"]}}}', json.dumps(row), row["id"], None) for row in rows]
    base = spark.createDataFrame(records, "_key string, _row string, _seq bigint, _ts timestamp")
    first, second = (json.dumps(row) for row in rows[:2])
    changes = [(5, "u", first, json.dumps({**rows[0], "balance": "9.20"}), 512, 1), (6, "u", second, second, 512, 1)]
    envelope = "seq bigint, op string, before string, after string, space_id bigint, schema_version bigint"
    events = spark.createDataFrame(changes, envelope)
    versions = spark.createDataFrame(
        [(key, row, seq, None, None, None, "c", None) for key, row, seq, _ in records],
        "_key string, _row string, _begin_seq bigint, _end_seq bigint, _begin timestamp, _end timestamp,"
        " _begin_op string, _end_op string",
    )
    assert versions.columns == list(META_COLUMNS)
    frames = {
        "fresh": typed(base, FORM),
        "events": FieldColumns().with_forms([FORM]).add_to(events, {(512, 1): FORM}),
        "history": shown(versions, FORM, ()),
    }
    for name, frame in frames.items():
        frame.write.format(request.param).saveAsTable(f"cdc.shop_accounts_{name}")
    # A row on its way from one shard to the other is in both, and in each shard's `_bucket` there is what it is there.
    shards = {"s1": [(1, "active"), (2, "sent")], "s2": [(2, "active"), (3, "receiving")]}
    for shard, buckets in shards.items():
        bucket = spark.createDataFrame(buckets, "id bigint, status string")
        bucket.createTempView(f"{shard}__bucket")
        bucket.select(F.lit(shard).alias("shard"), F.col("id").alias("bucket_id")).createTempView(f"{shard}_orders")
    yield spark
    for name in (f"{shard}_{space}" for shard in shards for space in ("orders", "_bucket")):
        spark.catalog.dropTempView(name)
    for name in frames:
        spark.sql(f"DROP TABLE cdc.shop_accounts_{name}")
    spark.sql("DROP SCHEMA cdc")
    spark.sql("USE spark_catalog")


def test_the_sql_of_the_documentation_runs_and_counts_right(documented: SparkSession) -> None:
    statements = [one.strip() for block in DOCUMENTED for one in block.split(";")]
    assert len(statements) >= 6
    found: dict[str, Any] = {one: [tuple(row) for row in documented.sql(one).collect()] for one in statements}
    total = Decimal("1350.29")
    (differences,) = (rows for one, rows in found.items() if "difference" in one)
    assert differences == [(5, Decimal("-240.90")), (6, 0)]
    (richest,) = (rows for one, rows in found.items() if "balance > 100" in one)
    assert richest == [(2, Decimal("1000.20")), (1, Decimal("250.10"))]
    (sums,) = (rows for one, rows in found.items() if one.startswith("select max"))
    assert sums == [(Decimal("1000.20"), total, total * Decimal("1.2"))]
    assert [(4, total)] in found.values()
    (exact,) = (rows for one, rows in found.items() if one.startswith("select count(balance__exact)"))
    assert exact == [(1,)]
    (rounded,) = (rows for one, rows in found.items() if "cast(balance__exact" in one)
    assert rounded == [(pytest.approx(float(total) + 1 / 9),)]
    (times,) = (rows for one, rows in found.items() if "local_time" in one)
    assert [str(time) for number, _, time in times if number == 1] == ["2024-02-29 23:59:58"]
    (owned,) = (rows for one, rows in found.items() if "s1__bucket" in one)
    assert sorted(owned) == [("s1", 1), ("s2", 2)]
    (cities,) = (rows for one, rows in found.items() if "as city" in one)
    assert sorted(cities) == [(1, "Oslo"), (2, None), (3, None), (4, None)]
    rates = documented.sql("select id, rate, rate__exact from cdc.shop_accounts_fresh order by rate desc nulls last").collect()
    assert [tuple(row) for row in rates] == [(2, 10, None), (1, 9, None), (3, Decimal("0.1"), None), (4, None, "1.0E300")]


UNSIGNED: Final = "18446744073709551615"
DIGITS: Final = "12345678901234567890123456789012345678"
Column = tuple[str, str, str | None]
"""The suffix of a column, its type, and its value as text."""


def case(kind: str, scale: int | None, value: str, *columns: Column) -> tuple[str, int | None, str, tuple[Column, ...]]:
    """A field's type and scale, the JSON of a value, and the columns."""
    return kind, scale, value, columns


COLUMNS: Final = (
    case("boolean", None, "true", ("", "boolean", "true")),
    *(case(kind, None, UNSIGNED, ("", "decimal(20,0)", UNSIGNED)) for kind in ("unsigned", "integer", "uint64")),
    *(case(kind, None, "-7", ("", "bigint", "-7")) for kind in ("int8", "int16", "int32", "int64")),
    *(case(kind, None, "7", ("", "bigint", "7")) for kind in ("uint8", "uint16", "uint32")),
    *(case(kind, None, "0.1", ("", "double", "0.1")) for kind in ("double", "float32", "float64")),
    case("double", None, '"-Infinity"', ("", "double", "-Infinity")),
    case("number", None, '"1.50"', ("", "decimal(37,18)", "1.500000000000000000"), ("__exact", "string", None)),
    case("number", None, '"NaN"', ("", "decimal(37,18)", None), ("__exact", "string", "NaN")),
    case("decimal", None, f'"{DIGITS}"', ("", "decimal(37,18)", None), ("__exact", "string", DIGITS)),
    case("decimal32", None, '"1.5"', ("", "decimal(37,18)", "1.500000000000000000"), ("__exact", "string", None)),
    case("decimal32", 2, '"-1234567.80"', ("", "decimal(9,2)", "-1234567.80")),
    case("decimal32", -2, '"99999999900"', ("", "decimal(11,0)", "99999999900")),
    case("decimal32", 11, '"0.00999999999"', ("", "decimal(11,11)", "0.00999999999")),
    case("decimal64", 18, '"0.123456789012345678"', ("", "decimal(18,18)", "0.123456789012345678")),
    case("decimal128", 0, f'"{DIGITS}"', ("", "decimal(38,0)", DIGITS)),
    case("decimal256", 2, f'"{DIGITS}9.25"', ("", "decimal(37,18)", None), ("__exact", "string", f"{DIGITS}9.25")),
    case("string", None, '"12"', ("", "string", "12")),
    case("uuid", None, '"6d6e3e2c-0000-4000-8000-000000000001"', ("", "string", "6d6e3e2c-0000-4000-8000-000000000001")),
    case("varbinary", None, '"AP8="', ("", "binary", "00FF")),
    case(
        *("datetime", None, '"2024-02-29T23:59:58.123456789+03:00"'),
        *(("", "timestamp", "2024-02-29 20:59:58.123456"), ("__offset", "int", "180")),
    ),
    case("datetime", None, '"1969-12-31T23:59:58-09:30"', ("", "timestamp", "1970-01-01 09:29:58"), ("__offset", "int", "-570")),
    case("datetime", None, '"2024-02-29T23:59:58Z"', ("", "timestamp", "2024-02-29 23:59:58"), ("__offset", "int", "0")),
    case("datetime", None, '"+012024-02-29T23:59:58Z"', ("", "timestamp", "+12024-02-29 23:59:58"), ("__offset", "int", "0")),
    case("datetime", None, "null", ("", "timestamp", None), ("__offset", "int", None)),
    case("interval", None, '"P1Y-2M3DT4.5S"', ("", "string", "P1Y-2M3DT4.5S")),
    case("array", None, '[1,"a"]', ("", "string", '[1,"a"]')),
    case("map", None, '{"a":1}', ("", "string", '{"a":1}')),
    case("any", None, "12", ("", "string", "12")),
    case("scalar", None, '"x"', ("", "string", "x")),
)


@pytest.mark.parametrize("name", FORMATS)
def test_each_type_has_its_columns_in_each_format(spark: SparkSession, tmp_path: Path, name: str) -> None:
    fields = tuple(Field(f"f{place}", kind, scale) for place, (kind, scale, _, _) in enumerate(COLUMNS))
    form = Form("things", 512, 1, 0, ("f0",), fields)
    row = "{" + ",".join(f'"f{place}":{value}' for place, (_, _, value, _) in enumerate(COLUMNS)) + "}"
    rows = spark.createDataFrame([("1", row, 1, None)], "_key string, _row string, _seq bigint, _ts timestamp")
    table = qualified(spark, str(tmp_path / "things"))
    FORMATS[name].overwrite(typed(rows, Form.from_json(form.to_json())), table)
    read = FORMATS[name].read(spark, table)
    types = dict(read.dtypes)
    shown = read.select(*(F.hex(one) if kind == "binary" else F.col(one).cast("string") for one, kind in read.dtypes)).collect()
    values = dict(zip(types, shown[0], strict=True))
    found = [
        case(kind, scale, value, *((end, types[f"f{place}{end}"], values[f"f{place}{end}"]) for end, _, _ in columns))
        for place, (kind, scale, value, columns) in enumerate(COLUMNS)
    ]
    assert found == list(COLUMNS)
    assert len(types) == 4 + sum(len(columns) for _, _, _, columns in COLUMNS)


@pytest.mark.one_of_these("tables that are not as they were")
def test_tables_of_an_earlier_version_get_the_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, place = FakeTopics(spark), Topics("nowhere:9092", "shop")

    def process(batch: int, *messages: Message) -> None:
        records = topics.send(*messages)
        topics.took(records)
        current = current_sink(spark, place, str(tmp_path / "current"), topics, share=0.0, min_unmerged=1)
        current.write(records, batch, "query")
        current.finish()
        HistorySink(spark, place, str(tmp_path / "history"), publish_every=1).write(records, batch, "query")

    with monkeypatch.context() as earlier:
        earlier.setattr(field_types, "_KINDS", {**field_types._KINDS, "number": ("string",)})
        process(0, schema(0), *(put("c", {"id": number, "balance": number * 10}, number) for number in range(1, 11)))
    users = str(tmp_path / "current" / "users")
    assert dict(tables.read(spark, users).dtypes)["balance"] == "string"
    assert read_current(spark, users).agg(F.max("balance")).collect() == [(100,)]  # before the job has started again
    process(1, put("u", {"id": 2, "balance": 1e300}, 11))
    for path, condition in ((users, "true"), (str(tmp_path / "history" / "users"), "_end_seq is null")):
        rows = tables.read(spark, path).where(condition)
        assert dict(rows.dtypes)["balance"] == "decimal(37,18)"
        assert rows.agg(F.max("balance"), F.sum("balance"), F.max("balance__exact")).collect() == [(100, 530, "1.0E300")]
