"""What the jobs say to records in forms that they don't read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cdc.formats.options import FormatOptions, Registration
from spark_jobs.contract.envelope import with_fault_column
from spark_jobs.contract.registry import Registry
from spark_jobs.errors import JobError
from tests.fakes.master import Master
from tests.fakes.registry import FakeRegistry
from tests.fakes.replica import Replica
from tests.spark.messages import FakeTopics, Message


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as started:
        yield started


def record(registry: FakeRegistry, **formats: str) -> tuple[bytes, bytes]:
    """The key and the value that a daemon publishes for a row."""

    def number(wanted: Registration) -> int:
        return registry.register(wanted.subject, wanted.text)

    master = Master("2.11")
    master.create_space("users", [{"name": "id", "type": "unsigned"}])
    master.insert("users", 1)
    given = {"key": "json", "value": "json"} | formats
    replica = Replica(master, images=True, formats=FormatOptions(**given, schema_ids=number))  # type: ignore[arg-type]
    replica.connect()
    replica.commit()
    ((_, key, value),) = (one for one in replica.news() if one[0] == "shop.users")  # type: ignore[index, misc]
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    return key, value


@pytest.mark.spark
def test_each_form_is_named_with_what_to_do(spark: SparkSession, registry: FakeRegistry) -> None:
    registered = (
        'format.{0} = "avro", "protobuf" or "json_schema_registry". If it is Avro, start the job with --value-format avro'
    )
    cases = {
        'its value is in format.value = "json_schema". The jobs read': {"value": "json_schema"},
        'its key is in format.key = "json_schema". The jobs read': {"key": "json_schema"},
        'its value is in format.envelope = "flat". The jobs read': {"envelope": "flat"},
        'its value is in format.source = "lean". The jobs read': {"source": "lean"},
    }
    told = [(sentence, record(registry, **formats)) for sentence, formats in cases.items()]
    for part in ("key", "value"):
        for kind in ("avro", "protobuf", "json_schema_registry"):
            told.append((registered.format(part), record(registry, **{part: kind})))
    texts = [(key.decode(), value.decode("utf-8", "replace")) for _, (key, value) in told]
    key, value = record(registry)
    readable = key.decode(), value.decode()
    sent = FakeTopics(spark).send(*(Message("shop.users", *text) for text in [*texts, readable]))
    columns = ("cast(key as string)", "cast(value as string)", "sentence")
    found = {(key, value): sentence for key, value, sentence in with_fault_column(sent).selectExpr(*columns).collect()}
    assert found.pop(readable) is None
    assert found.keys() == set(texts)
    for (wanted, _), text in zip(told, texts, strict=True):
        assert wanted in found[text]
        assert found[text].endswith("let a daemon with these settings publish to another kafka.topic_prefix, and read that.")


@pytest.mark.parametrize(("value", "kind"), [("protobuf", "PROTOBUF"), ("json_schema_registry", "JSON")])
def test_schemas_of_other_formats_in_the_registry_are_refused(registry: FakeRegistry, value: str, kind: str) -> None:
    number = int.from_bytes(record(registry, value=value)[1][1:5], "big")
    with pytest.raises(JobError, match=rf"The schema {number} of an event is one of {kind}\. The jobs read format\.key"):
        Registry(registry.url).schema(number)
