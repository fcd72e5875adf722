"""Kafka records in Avro → the columns of their envelopes, read by Spark's `from_avro`. For envelope.py, which does so with JSON.

Each schema has a column with the structs of its records, null for all others. The members of the envelope are taken from these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from spark_jobs.contract.avro_columns import ROWS, Members, Reading
from spark_jobs.contract.avro_records import with_left_to_python
from spark_jobs.contract.avro_schemas import NOT_MET, NOT_READ, Schemas, column, head_of
from spark_jobs.contract.avro_text import HEADER_BYTES, MAGIC
from spark_jobs.contract.registry import UnknownSchemaError
from spark_jobs.errors import JobError

IS_AVRO: Final = "_is_avro"
"""Column with whether a record's value is in Avro."""
_CLASS: Final = "org.apache.spark.sql.avro.AvroDataToCatalyst"
_PACKAGE: Final = "org.apache.spark:spark-avro_2.13"
_MAGIC: Final = f"X'{bytes([MAGIC]).hex()}'"
_HEADS: Final = {"key": "_head_of_key", "value": "_head_of_value"}


def learn(records: DataFrame, schemas: Schemas) -> None:
    """Read which schemas the records have. Raises JobError."""
    _check_class_path(records.sparkSession)
    heads = (F.substring(F.col(side), 1, HEADER_BYTES).alias(side) for side in ("key", "value"))
    found = records.where("value is not null").select(*heads).distinct().collect()
    try:
        schemas.learn([(row["key"], row["value"]) for row in found])
    except UnknownSchemaError as error:
        raise JobError(str(error)) from error


def _check_class_path(session: SparkSession) -> None:
    loader = session.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    try:
        loader.loadClass(_CLASS)
    except Py4JError as error:
        raise JobError(
            f"Topics in Avro are read with Spark's own {_PACKAGE}, and its class path has no {_CLASS}. Add the package, in the"
            f" version of Spark ({session.version}), to --packages, --jars or spark.jars.packages."
        ) from error


def read_again(records: DataFrame, schemas: Schemas | None, step: Callable[[], object]) -> None:
    """Run a step that reads the records, again and again until its plan has all of their schemas.

    An error tells only one schema that is left to Python, so there are as many tries as such schemas.
    """
    if schemas is None:
        step()
        return
    if schemas.is_empty:
        learn(records, schemas)
    while True:
        known = schemas.extent
        try:
            step()
            return
        except (PySparkException, Py4JError) as error:
            if not schemas.learn_from(str(error)):
                raise
            learn(records, schemas)
            if schemas.extent == known:
                raise


class AvroEnvelope:
    """The columns of one batch's records in Avro."""

    def __init__(self, schemas: Schemas, structs: Mapping[str, StructType], others: Collection[str]) -> None:
        """`structs` are the wanted members that are structs, with their wanted fields; `others` are the other members."""
        self._schemas = schemas
        self._structs = structs
        fields = {name: struct.names for name, struct in structs.items()}
        self._members: Members = {**dict.fromkeys(("op", *others)), **fields}
        self._keys, self._keys_left = schemas.of_keys()
        self._events, self._events_left = schemas.of_events(self._members)

    def __contains__(self, member: str) -> bool:
        """Return whether a member of the envelope is read."""
        return member in self._members

    @property
    def columns(self) -> list[str]:
        """The columns that `read` adds."""
        return [
            *(IS_AVRO, *_HEADS.values()),
            *(column("key", number) for number in self._keys),
            *(column("value", number) for number in self._events),
        ]

    @property
    def has_json(self) -> bool:
        """Whether some records are JSON, in Kafka or as Python has converted them."""
        return self._schemas.has_json or bool(self._events_left)

    def read(self, records: DataFrame) -> DataFrame:
        """Return the records with the columns `columns`. Their `key` is the key's text, and `value` is null if it is in Avro."""
        left = {"key": self._keys_left, "value": self._events_left}
        told = with_left_to_python(records, self._schemas.registry, left)
        heads = (F.substring(F.col(side), 1, HEADER_BYTES).alias(name) for side, name in _HEADS.items())
        read = told.select("*", *heads)
        structs = [
            F.when(_has_head(side, number), _struct(side, reading)).alias(column(side, number))
            for side, readings in (("key", self._keys), ("value", self._events))
            for number, reading in readings.items()
        ]
        is_avro = _is_avro("value")
        read = read.select("*", is_avro.alias(IS_AVRO), *structs)
        text = F.when(~F.col(IS_AVRO), F.col("value"))
        return read.withColumns({"key": self._key(), "value": text})

    def _key(self) -> Column:
        key = F.col("key").cast("string")
        for number, reading in self._keys.items():
            key = F.when(_has_head("key", number), F.expr(reading.key)).otherwise(key)
        return key

    def member(self, name: str) -> Column:
        """Return a member of the events in Avro; null for other records."""
        found: Column = F.lit(None)
        for number, reading in self._events.items():
            struct = column("value", number)
            found = F.when(_has_head("value", number), self._of(name, reading, struct)).otherwise(found)
        return found

    def _of(self, name: str, reading: Reading, struct: str) -> Column:
        if name in ROWS:
            return F.expr(reading.texts.get(name, "null")).cast("string")
        if name not in self._structs:
            return F.col(f"{struct}.{name}")
        there = reading.fields.get(name, ())
        values = (
            (F.col(f"{struct}.{name}.{one.name}") if one.name in there else F.lit(None)).cast(one.dataType).alias(one.name)
            for one in self._structs[name].fields
        )
        return F.when(F.col(f"{struct}.{name}").isNotNull(), F.struct(*values))

    def fault(self) -> Column:
        """Return the error with which the query must end at a record, so that its batch is repeated; null for others."""
        is_met = F.col(IS_AVRO) if self.has_json else F.lit(True)
        found = F.when(is_met, F.lit(NOT_MET))
        for number in self._events:
            error = F.when(F.col(f"{column('value', number)}.op").isNull(), F.lit(f"{NOT_READ}{number}"))
            found = F.when(_has_head("value", number), error).otherwise(found)
        key = F.when(_is_avro(_HEADS["key"]), F.lit(NOT_MET))
        for number in self._keys:
            error = F.when(F.col("key").isNull(), F.lit(f"{NOT_READ}{number}"))
            key = F.when(_has_head("key", number), error).otherwise(key)
        return F.coalesce(found, key)


def _is_avro(side: str) -> Column:
    """Return a condition: the bytes begin as a value in Avro does. Those that end within the schema's id are nothing readable."""
    return F.expr(f"startswith({side}, {_MAGIC}) and octet_length({side}) >= {HEADER_BYTES}")


def _has_head(side: str, number: int) -> Column:
    return F.expr(f"{_HEADS[side]} = {head_of(number)}")


def _struct(side: str, reading: Reading) -> Column:
    content = F.expr(f"substring({side}, {HEADER_BYTES + 1})")
    return from_avro(content, reading.writer, {"mode": "PERMISSIVE", "avroSchema": reading.reader})
