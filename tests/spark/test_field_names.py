"""No name of a field matters: the values of all of them are where they belong, whatever a job does with its tables."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.forms import META_COLUMNS, Field, Form, same_name
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.history.job import HistorySink, rows_as_of
from spark_jobs.lake.field_columns import FieldColumns
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.typed_events import TypedEventsSink
from spark_jobs.runner.checkpoint import MadeTables
from spark_jobs.tables import delta as tables
from spark_jobs.tables.location import Location
from tests.spark.messages import FakeTopics, delete, put, schema, snapshot
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

OF_DELTA: Final = (
    *("path", "filePath", "FILEPATH", "rowIndexCol", "deletionVectorId", "_metadata", "_row_id_", "_file_name_", "rowIndex"),
    *("_source_row_present_", "_target_row_present_", "_row_dropped_", "_change_type", "_commit_version", "stats", "_deleted"),
    *("__delta_internal_row_index", "__delta_internal_is_row_deleted"),
)
"""Names of columns that Delta's MERGE and DELETE use themselves."""
OF_JOBS: Final = (
    *(
        "_key",
        "_row",
        "_seq",
        "_ts",
        "_fields",
        "_fields_of_before",
        "key",
        "before",
        "after",
        "seq",
        "op",
        "space",
        "old",
        "new",
    ),
    *(
        "stored",
        "kept",
        "newest",
        "image",
        "patches",
        "merged",
        "event",
        "shown",
        "gone",
        "fields",
        "date",
        "batch",
        "hash_of_the_key",
    ),
    *("_begin_seq", "_end_seq", "_begin", "_end", "_begin_op", "_end_op", "the interval", "the_interval", "topic", "source"),
)
OF_SQL: Final = (
    "select",
    "from",
    "where",
    "null",
    "true",
    "struct",
    "timestamp",
    "current_date",
    "*",
    "a.b",
    "a",
    "b",
    "a.b.c",
    ".",
    "..",
)
WRITTEN: Final = (
    *(
        "",
        " ",
        "  ",
        "`",
        "``",
        "'",
        '"',
        "\\",
        "\\'",
        "a`b",
        "a'b",
        "a b",
        "a,b;c",
        "(x)",
        "{x}",
        "=",
        "\n",
        "\t",
        "\r",
        "\x00",
        "\x7f",
        "%s",
    ),
    *(
        "Name",
        "name",
        "NAME",
        "name__2",
        "имя",
        "Имя",
        "名前",
        "🙂",
        "é",
        "e\u0301",
        "ß",
        "ss",
        "K",
        "\u212a",
        "k",
        "$a",
        "a/b",
        "-",
        "0",
    ),
    *("x" * 200, "X" * 200, "ж" * 200),
)


def names() -> list[str]:
    """All of the above, and some made of what is special anywhere. A format has each name once."""
    made = random.Random(7)
    letters = "aA._`'\"\\ ,;{}()=\n\tжé🙂$%*-0"
    others = ["".join(made.choices(letters, k=made.randint(1, 6))) for _ in range(10)]
    return [name for name in dict.fromkeys((*OF_DELTA, *OF_JOBS, *OF_SQL, *WRITTEN, *others)) if name != "id"]


NAMES: Final = names()
COLUMNS: Final = [("id", "unsigned"), *((name, "string") for name in NAMES)]
FORM: Final = Form("users", 512, 1, 0, ("id",), tuple(Field(*column) for column in COLUMNS))
TOPICS: Final = Topics("nowhere:9092", "shop")
ROWS: Final = 30


def row(identity: int, round_: int = 0) -> dict[str, Any]:
    return {"id": identity, **{name: f"{place} {identity} {round_}" for place, name in enumerate(NAMES)}}


def values(frame: DataFrame, columns: list[str]) -> dict[int, list[str]]:
    """The values of all fields, by the row's id."""
    return {int(found[0]): list(found[1:]) for found in frame.select(*(f"`{name}`" for name in columns)).collect()}


def expected(*rows: dict[str, Any]) -> dict[int, list[str]]:
    return {one["id"]: [one[name] for name in NAMES] for one in rows}


def test_each_field_has_a_column_that_sql_and_parquet_can_have() -> None:
    columns = FORM.column_names()
    assert len({same_name(name) for name in (*META_COLUMNS, *columns)}) == len(META_COLUMNS) + len(COLUMNS)
    typed = [column.name for column in FieldColumns().with_forms([FORM]).columns]
    assert len({same_name(name) for name in typed}) == len(COLUMNS)
    for name in (*columns, *typed):
        assert name
        assert not set(name) & set(" ,;{}()\n\t=`")
    for plain in ("path", "_metadata", "select", "имя", "x" * 200):
        assert plain in columns


@pytest.mark.one_of_these("typed events")
def test_current_merges_sweeps_and_shows_all_names(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), str(tmp_path / "lake")
    sink = current_sink(spark, TOPICS, path, topics, share=0.0, min_unmerged=1)
    columns = list(FORM.column_names())
    table = f"{path}/users"
    state = {number: row(number) for number in range(1, ROWS + 1)}

    def check() -> None:
        for frame in (
            read_current(spark, table),
            spark.sql(view.query()) if (view := lake.fresh_view(lake.table("users"))) else None,
        ):
            assert frame is not None
            assert values(frame, columns) == expected(*state.values())

    lake = Lake.at(spark, path)
    assert lake.forgotten_table is not None
    steps = [
        [schema(0, columns=COLUMNS), *(put("c", state[number], number) for number in state)],
        [put("u", row(3, 1), 31), delete(4, 32)],
        [put("u", row(5, 1), 33), put("c", row(40, 1), 34)],
        [
            snapshot("STARTED", 34),
            *(put("r", row(number, 2), 34 + number) for number in range(1, 4)),
            snapshot("COMPLETED", 37, sweep_seq=6),
        ],
    ]
    changes: list[tuple[list[int], list[dict[str, Any]]]] = [
        ([], []),
        ([4], [row(3, 1)]),
        ([], [row(5, 1), row(40, 1)]),
        ([6], [row(number, 2) for number in range(1, 4)]),
    ]
    for batch, (messages, (removed, written)) in enumerate(zip(steps, changes, strict=True)):
        records = topics.send(*messages)
        topics.took(records)
        sink.write(records, batch, "query")
        sink.finish()
        for number in removed:
            del state[number]
        state |= {one["id"]: one for one in written}
        lake.forgotten_table.create()
        if batch % 2 == 0:
            continue  # what is shown is seen by the next one as well
        check()
        assert values(tables.read(spark, table), columns) == expected(*state.values())


@pytest.mark.one_of_these("typed events")
def test_typed_events_and_a_history_have_all_names(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    history = HistorySink(spark, TOPICS, str(tmp_path / "history"), publish_every=1)
    made = MadeTables(spark, str(tmp_path / "checkpoint"))
    typed = TypedEventsSink(spark, TOPICS, Location(str(tmp_path / "typed")), made, read_topic=topics.read)
    for batch, messages in enumerate(
        (
            [schema(0, columns=COLUMNS), *(put("c", row(number), number) for number in (1, 2))],
            [put("u", row(1, 1), 3), delete(2, 4)],
        )
    ):
        records = topics.send(*messages)
        history.write(records, batch, "query")
        typed.write(records.where("topic <> 'shop.schema'"), batch, "query")
    now = expected(row(1, 1))
    shown = [name for name in rows_as_of(spark, str(tmp_path / "history"), "users", seq=4).columns if name not in HISTORY]
    assert len(shown) == len(COLUMNS)
    assert values(rows_as_of(spark, str(tmp_path / "history"), "users", seq=4), shown) == now
    published = tables.read(spark, str(tmp_path / "history" / "users")).where("_end_seq is null")
    assert values(published, shown) == now
    (last,) = tables.read(spark, str(tmp_path / "typed" / "users")).where("seq = 3").select("new").collect()
    assert list(last["new"])[1:] == now[1]


HISTORY: Final = ("_key", "_row", "_begin_seq", "_end_seq", "_begin", "_end", "_begin_op", "_end_op")
