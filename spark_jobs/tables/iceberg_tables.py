"""Iceberg's Java objects for tables: their catalogs, their schemas, and files that Spark writes before they are committed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.contract.sql_text import quoted
from spark_jobs.errors import JobError
from spark_jobs.tables.places import OWN_CATALOG, CatalogTable, Table, qualified

STAGED: Final = "tarantool_cdc_staged"
"""The catalog with the tables for which files are staged."""
STAGING_CATALOG: Final = "org.apache.iceberg.spark.SparkRewriteTableCatalog"
_SETTING: Final = "spark.sql.catalog."
_PACKAGE: Final = "org.apache.iceberg.spark."

_KNOWN: Final[WeakKeyDictionary[SparkSession, set[str]]] = WeakKeyDictionary()
"""The catalogs that this module has set up in each session."""


def identifier(session: SparkSession, table: Table) -> str:
    """Return the table's name in SQL."""
    return ".".join(map(quoted, _parts(session, table)))


def find(session: SparkSession, table: Table) -> Any:
    """Return the table with its present metadata; None if there is none. Raises JobError if it isn't one of Iceberg's."""
    catalog, name = _java_catalog(session, table)
    try:
        found = catalog.loadTable(name)
        if isinstance(table, CatalogTable):
            found.refresh()  # unlike the catalogs of this module, others may cache their tables
        return found
    except (PySparkException, Py4JError) as error:
        text = str(error)
        # In a catalog without schemas Iceberg takes a missing table's name, such as `files`, for one of its tables of metadata.
        if "NoSuchTableException" in text or "Cannot create table identifier without a table name" in text:
            return None
        if "NoSuchIcebergTableException" in text:
            raise JobError(f"The table {table} isn't an Iceberg table. Choose another --table-template.") from error
        raise


def load(session: SparkSession, table: Table) -> Any:
    """Return the table with its present metadata. Raises JobError if there is none."""
    found = find(session, table)
    if found is None:
        raise JobError(
            f"The table {table} is gone. Put it back where it was, or start from the beginning with an empty --checkpoint."
        )
    return found


def made(
    session: SparkSession, table: Table, schema: StructType, partition_by: Sequence[str], properties: Mapping[str, str]
) -> Any:
    """Return a transaction that creates a table; None if another writer has just created it."""
    catalog, name = _java_catalog(session, table)
    jvm: Any = session.sparkContext._jvm
    columns = java_schema(session, schema)
    spec = jvm.org.apache.iceberg.PartitionSpec.builderFor(columns)
    for column in partition_by:
        spec = spec.identity(column)
    builder = catalog.buildTable(name, columns).withPartitionSpec(spec.build())
    for key, value in properties.items():
        builder = builder.withProperty(key, value)
    try:
        return builder.createTransaction()
    except (PySparkException, Py4JError) as error:
        if "AlreadyExistsException" in str(error):
            return None
        raise


def staged(frame: DataFrame, table: Any) -> list[Any]:
    """Have Spark write the rows into files for this table, or for that of a transaction, and return them. None is committed.

    Spark writes them as Iceberg's compaction does, which commits the files itself once all are written. Such a table also has the
    columns with the ids of its rows. They are null here: then a row gets its id from the commit.
    """
    session = frame.sparkSession
    # Spark looks for it in the settings of the session that the thread uses, which needn't be this one.
    for known in {session, SparkSession.getActiveSession() or session}:
        _know(known, STAGED, {"": STAGING_CATALOG})
    jvm: Any = session.sparkContext._jvm
    written = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
    tables, key = _cache(session), uuid4().hex
    tables.add(key, table)
    try:
        frame.writeTo(f"{STAGED}.`{key}`").append()
        return list(written.fetchNewFiles(table, key))
    finally:
        written.clearRewrite(table, key)
        tables.remove(key)


def java_schema(session: SparkSession, schema: StructType) -> Any:
    """Return Iceberg's schema for Spark's. All columns may be null, as in Delta."""
    jvm: Any = session.sparkContext._jvm
    found = session._jsparkSession.parseDataType(schema.json()).asNullable()
    return jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(found)


def java_names(session: SparkSession, names: Sequence[str]) -> Any:
    """Return Java's array of these names."""
    jvm: Any = session.sparkContext._jvm
    gateway: Any = session.sparkContext._gateway
    found = gateway.new_array(jvm.java.lang.String, len(names))
    for place, name in enumerate(names):
        found[place] = name
    return found


def columns_of(schema: Any) -> dict[str, Any]:
    """Return the types of a schema's columns by their names, in order."""
    return {str(field.name()): field.type() for field in schema.columns()}


def comments_of(schema: Any) -> dict[str, str]:
    """Return the comments of a schema's columns by their names; without comment an empty text."""
    return {str(field.name()): str(field.doc() or "") for field in schema.columns()}


def _parts(session: SparkSession, table: Table) -> tuple[str, ...]:
    """Return the names of the catalog, of the schemas in it, and of the table."""
    if isinstance(table, CatalogTable):
        return table.parts
    parent, _, name = qualified(session, table).rstrip("/").rpartition("/")
    catalog = f"tarantool_cdc_{hashlib.sha256(parent.encode()).hexdigest()[:12]}"
    # Another process may change the tables, so nothing is cached.
    _know(session, catalog, {"": f"{_PACKAGE}SparkCatalog", ".type": "hadoop", ".warehouse": parent, ".cache-enabled": "false"})
    return catalog, name


def _know(session: SparkSession, catalog: str, settings: Mapping[str, str]) -> None:
    known = _KNOWN.setdefault(session, set())
    if catalog not in known:
        for name, value in settings.items():
            session.conf.set(f"{_SETTING}{catalog}{name}", value)
        known.add(catalog)


def _java_catalog(session: SparkSession, table: Table) -> tuple[Any, Any]:
    """Return Iceberg's catalog with a table, and the table's name in it. Raises JobError."""
    jvm: Any = session.sparkContext._jvm
    if isinstance(table, str):
        parent, _, name = qualified(session, table).rstrip("/").rpartition("/")
        # Not the session's own one, which Spark looks for in the settings of the session that the thread uses.
        catalog = jvm.org.apache.iceberg.hadoop.HadoopCatalog(session.sparkContext._jsc.hadoopConfiguration(), parent)
        return catalog, _java_name(session, (), name)
    known, *schema, name = table.parts
    _check(known)
    catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(session._jsparkSession, known)
    return catalog, _java_name(session, schema, name)


def _check(catalog: str) -> None:
    if catalog == OWN_CATALOG:
        raise JobError(
            "--table-format iceberg can't keep its tables in spark_catalog, which the jobs use for Delta. Name another catalog"
            " with --catalog, configured with --spark-conf spark.sql.catalog.NAME=org.apache.iceberg.spark.SparkCatalog, or use"
            " --path."
        )


def _java_name(session: SparkSession, schema: Sequence[str], name: str) -> Any:
    jvm: Any = session.sparkContext._jvm
    namespace = jvm.org.apache.iceberg.catalog.Namespace.of(java_names(session, schema))
    return jvm.org.apache.iceberg.catalog.TableIdentifier.of(namespace, name)


def _cache(session: SparkSession) -> Any:
    # By reflection, as py4j takes this static method for the other one with the same name.
    jvm: Any = session.sparkContext._jvm
    gateway: Any = session.sparkContext._gateway
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    method = loader.loadClass(f"{_PACKAGE}SparkTableCache").getMethod("get", gateway.new_array(jvm.java.lang.Class, 0))
    return method.invoke(None, gateway.new_array(jvm.java.lang.Object, 0))
