"""What Spark reads of events in Avro is what it reads of the same events in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract import avro_schemas
from spark_jobs.contract.avro_envelope import learn, read_again
from spark_jobs.contract.avro_records import as_json
from spark_jobs.contract.avro_schemas import NOT_MET, NOT_READ, PLANNED_MAX, Schemas
from spark_jobs.contract.envelope import NO_CHANGE_EVENT, parse, with_fault_column
from spark_jobs.contract.registry import Registry
from tests.fakes.master import Master
from tests.fakes.registry import FakeRegistry
from tests.formats.oracles import Ids, published
from tests.formats.test_events import FORMAT, work
from tests.spark.contract.test_avro_text import ODD_FORMAT, odd_work

Record = tuple[bytes | None, bytes]

COLUMNS: Final = ("op", "key", "before", "after", "patch", "upsert", "source", "transaction", "ts_ms", "ts_us", "ts_ns")
DOUBLES: Final = (
    *(1e7, 12345678.5, 123456789.125, 1e15, 9.999e15, 1e16, 1e22, 2e23, 1.5e300, 1.7976931348623157e308, 0.1, 100.0),
    *(1.5e-3, 1e-4, 1.5e-5, -1e-5, 1e-6, 5.684341886080802e-14, 1e-323, 5e-324),
)
TEXTS: Final = ('"\\\x0b\x1f\x7f\u2028😀', "a\nb\x1a\\u001A\\", "plain", "")
LARGE: Final = Decimal("12345678901234567890123456789012345678901234567890")


def odd_changes(master: Master) -> None:
    odd_work(master)
    for number, double in enumerate(DOUBLES):
        master.insert("odd", double, number, TEXTS[number % 4], TEXTS[number % 3], 0.5)


def users_changes(master: Master) -> None:
    master.insert("users", 1, "one", 10)
    work(master)


def records_of(
    ids: Ids, name: str, format_: list[dict[str, Any]], change: Any, *, images: bool = True, **options: Any
) -> list[Record]:
    """The records of the space's topic, without tombstones."""
    master = Master("2.11")
    master.create_space(name, format_, ((0, format_[0]["type"]),))
    made = published(master, change, ids, images=images, **{"key": "avro", "value": "avro", **options})
    return [(key, value) for topic, key, value in made if topic.endswith(f".{name}") and value is not None]


class Known(Registry):
    """A registry that is asked without a network."""

    def __init__(self, ids: Ids) -> None:
        super().__init__("http://unused")
        object.__setattr__(self, "ids", ids)

    def schema(self, number: int) -> str:
        """See `Registry.schema`."""
        text: str = self.ids.schemas[number - 1].text  # type: ignore[attr-defined]
        return text

    __hash__ = object.__hash__


def frame(spark: SparkSession, records: Sequence[Record]) -> DataFrame:
    rows = [("t", 0, number, None, key and bytearray(key), bytearray(value)) for number, (key, value) in enumerate(records)]
    return spark.createDataFrame(
        rows, "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
    )


def read(records: DataFrame, schemas: Schemas | None = None) -> list[dict[str, Any]]:
    rows = parse(records, schemas=schemas).select("offset", *COLUMNS).collect()
    return [row.asDict(recursive=True) for row in sorted(rows, key=lambda row: int(row["offset"]))]


def in_json(registry: Registry, records: Sequence[Record]) -> list[Record]:
    convert = as_json(registry)
    return [(convert(key), convert(value) or b"") for key, value in records]


@pytest.mark.spark
@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
def test_all_columns_are_those_of_json(spark: SparkSession, images: bool) -> None:
    ids = Ids()
    sized: dict[str, Any] = {"images": images, "unsigned": "decimal", "decimal": "string"}
    records = [
        *records_of(ids, "users", FORMAT, users_changes, images=images),
        *records_of(ids, "users", FORMAT, users_changes, **sized),
        *records_of(ids, "odd", ODD_FORMAT, odd_changes, **sized),
        *records_of(ids, "odd", ODD_FORMAT, odd_changes, images=images, value="json"),
    ]
    registry = Known(ids)
    schemas = Schemas(registry)
    assert schemas.is_empty
    learn(frame(spark, records), schemas)
    found = read(frame(spark, records), schemas)
    assert found == read(frame(spark, in_json(registry, records)))
    assert len(found) > 30
    # All of it by Spark.
    assert not schemas.of_events({"op": None, "before": None, "after": None, "upsert": None})[1]
    assert not schemas.of_keys()[1]


@pytest.mark.one_of_these("jobs that read Avro")
@pytest.mark.spark
def test_a_batch_is_read_again_with_what_its_plan_lacks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another form, JSON, and decimals that only Python reads: each of them is met in a batch after the first one."""
    ids = Ids()
    exact: list[dict[str, Any]] = [{"name": "id", "type": "unsigned"}, {"name": "sum", "type": "decimal"}]

    def plain(master: Master) -> None:
        master.insert("sums", 1, Decimal("-0.050"))
        master.insert("sums", 2, Decimal("1E+3"))

    first = records_of(ids, "sums", exact, plain)
    large = records_of(ids, "sums", exact, lambda master: master.insert("sums", 3, LARGE))
    capitals = [*exact, {"name": "Sum", "type": "string"}]
    more = [
        *first,
        *large,
        *records_of(ids, "sums", capitals, lambda master: master.insert("sums", 4, Decimal(1), "Capital")),
        *records_of(ids, "sums", exact, plain, key="json", value="json"),
    ]
    registry = Known(ids)
    schemas = Schemas(registry)
    tries: list[list[dict[str, Any]]] = []
    read_again(frame(spark, first), schemas, lambda: tries.append(read(frame(spark, first), schemas)))
    assert tries == [read(frame(spark, in_json(registry, first)))]
    assert [event["after"] for event in tries[0]] == ['{"id":1,"sum":"-0.050"}', '{"id":2,"sum":"1000"}']
    read_again(frame(spark, more), schemas, lambda: tries.append(read(frame(spark, more), schemas)))
    assert tries[1:] == [read(frame(spark, in_json(registry, more)))]
    assert f'"sum":"{LARGE}"' in str(tries[1])
    # A plan that has no room for most of them reads the same.
    monkeypatch.setattr(avro_schemas, "PLANNED_MAX", 1)
    assert read(frame(spark, more), schemas) == tries[1]


@pytest.mark.one_of_these("jobs that read Avro")
@pytest.mark.spark
def test_what_is_damaged_is_told_as_before(spark: SparkSession) -> None:
    ids = Ids()
    key, value = records_of(ids, "users", FORMAT, lambda master: master.insert("users", 1, "one", 10))[0]
    registry = Known(ids)
    damaged = [(key, value[:40]), (key[:5] if key else None, value)]
    # These end before the schema's id does.
    damaged_heads = [(key, b"\0\0"), (b"\0", value)]
    for some in (damaged, *([one] for one in damaged_heads)):
        records = [(key, value), *some]
        schemas = Schemas(registry)
        with pytest.raises(PySparkException, match=NO_CHANGE_EVENT):
            read_again(frame(spark, records), schemas, lambda: read(frame(spark, records), schemas))  # noqa: B023 - called at once
    converted = with_fault_column(frame(spark, in_json(registry, [(key, value), *damaged, *damaged_heads])))
    # As the jobs do it: Spark can't plan a condition on the sentence together with the steps that find it.
    converted = converted.localCheckpoint(eager=False)
    assert converted.where("sentence is not null").count() == 4


def test_a_batch_is_read_until_all_that_is_left_to_python_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error tells only one schema."""
    monkeypatch.setattr("spark_jobs.contract.avro_envelope.learn", lambda *_: None)
    schemas = Schemas(Registry("http://unused"), values=set(range(30)))
    records: Any = None

    def step() -> None:
        for number in schemas.values - schemas.left_to_python:
            raise PySparkException(f"{NOT_READ}{number}")

    read_again(records, schemas, step)
    assert schemas.left_to_python == schemas.values

    def never() -> None:
        raise PySparkException(NOT_MET)

    with pytest.raises(PySparkException, match=NOT_MET):
        read_again(records, schemas, never)


def test_a_plan_names_the_newest_schemas_only() -> None:
    texts = {number: f'{{"type":"record","name":"K{number}","fields":[{{"name":"id","type":"long"}}]}}' for number in range(12)}
    schemas = Schemas(Registry("http://unused"), texts, keys=set(texts))
    assert PLANNED_MAX == 8
    readings, left = schemas.of_keys()
    assert (list(readings), left) == ([11, 10, 9, 8, 7, 6, 5, 4], [0, 1, 2, 3])
    assert schemas.learn_from(f"{NOT_READ}11")
    readings, left = schemas.of_keys()
    assert (list(readings), left) == ([10, 9, 8, 7, 6, 5, 4, 3], [0, 1, 2, 11])


def test_a_registry_is_asked_once_for_an_id() -> None:
    with FakeRegistry() as fake:
        number = fake.register("s", '{"type":"record","name":"K","namespace":"n","fields":[{"name":"id","type":"long"}]}')
        schemas = Schemas.of(Registry(fake.url))
        head = b"\0" + number.to_bytes(4, "big")
        schemas.learn([(head, b'{"op"'), (None, None)])
        Schemas.of(Registry(fake.url)).learn([(head, head)])
        assert fake.requests == [f"GET /schemas/ids/{number}"]
    assert schemas.has_json
    assert (schemas.keys, schemas.values) == ({number}, {number})
