"""Views of the newest rows: right whenever they were made, and whatever has happened to the tables since."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import run
from spark_jobs.contract.forms import META_COLUMNS
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.errors import JobError
from spark_jobs.lake import fresh_views
from spark_jobs.lake.fresh_view import FreshView
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.lake.lake import Lake
from spark_jobs.runner.registered import Names
from spark_jobs.tables import delta as tables
from spark_jobs.tables.location import Location
from spark_jobs.tables.views import SparkViews
from tests.spark.messages import COLUMNS, SPACE_ID, FakeTopics, Message, Place, delete, put, schema, truncate
from tests.spark.sinks import current_sink, folder_of
from tests.spark.stories import Space, Story, side_by_side

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")
LOCATION = Location(schema=("spark_catalog", "cdc"), prefix="shop")
LONGER = (*COLUMNS, ("city", "string"))
RENAMED = (LONGER[0], ("title", "string"), *LONGER[2:])

Row = dict[str, Any]


@pytest.fixture
def catalog(spark: SparkSession) -> Iterator[None]:
    spark.sql("CREATE SCHEMA cdc")
    yield
    spark.sql("DROP SCHEMA cdc CASCADE")


class Job:
    """The job over topics in memory."""

    def __init__(self, session: SparkSession, path: Path, views: FreshViews | None = None) -> None:
        self.session = session
        self.path = str(path)
        self.views = views
        self.topics = FakeTopics(session)
        self.batch = -1

    def send(self, *messages: Message, merges: bool = False) -> None:
        """Send messages and give them to a new process of the job, which merges them, or only appends them."""
        self.take(self.topics.send(*messages), merges=merges)

    def take(self, batch: DataFrame, *, merges: bool) -> None:
        """Give records to a new process of the job."""
        self.topics.took(batch)
        self.batch += 1
        sink = current_sink(self.session, TOPICS, self.path, self.topics, is_background=not merges, views=self.views)
        sink.write(batch, self.batch, "query")
        sink.close()
        sink.check()

    def view(self, space: str = "users") -> FreshView:
        """The view that the job would make now."""
        lake = Lake.at(self.session, self.path)
        view = lake.fresh_view(lake.table(space))
        assert view is not None
        if lake.forgotten_table is not None:
            lake.forgotten_table.create()
        return view

    def seen(self, view: FreshView) -> dict[str, Row]:
        """The rows that a view shows now, by their keys, each key once."""
        rows = self.session.sql(view.query()).collect()
        found = {row["_key"]: row.asDict() for row in rows}
        assert len(found) == len(rows)
        return found

    def newest(self, space: str = "users") -> dict[str, Row]:
        """The rows that `read_current` shows."""
        return {row["_key"]: row.asDict() for row in read_current(self.session, f"{self.path}/{folder_of(space)}").collect()}


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


class Shop:
    """A space that changes at random, with the rows after each seq as lists of values, worked out in the plainest way."""

    def __init__(self, chance: random.Random, space: Space) -> None:
        self.chance = chance
        self.space = space
        self.columns: tuple[tuple[str, str], ...] = COLUMNS
        self.key: tuple[str, ...] = ("id",)
        self.version = 1
        self.seq = 0
        self.rows: dict[int, list[Any]] = {}
        self.versions: dict[int, int] = {}
        self.history: dict[int, dict[str, list[Any]]] = {0: {}}

    def messages(self, count: int) -> list[Message]:
        """Changes of a few rows."""
        return [self._done(self._change()) for _ in range(count)]

    def go_on_from(self, seq: int) -> None:
        """Leave out seqs, which are those of other spaces."""
        self.history[seq] = self.history[self.seq]
        self.seq = seq

    def form(self, columns: tuple[tuple[str, str], ...], key: tuple[str, ...] = ("id",)) -> Message:
        """Another form."""
        self.columns, self.key, self.version = columns, key, self.version + 1
        return self.space.schema(self.seq, version=self.version, columns=columns, key=key)

    def snapshot(self) -> list[Message]:
        """A snapshot that finds some of the rows, and sweeps the others."""
        before = self.seq
        sent = [self.space.snapshot("STARTED", before, snapshot_id=f"{before}")]
        kept = {number: row for number, row in self.rows.items() if self.chance.random() < 0.6}
        for number in kept:
            self.seq += 1
            sent.append(self._put("r", number))
            self.versions[self.seq] = self.version
        self.rows = kept
        self.history[self.seq] = self._shown()
        return [*sent, self.space.snapshot("COMPLETED", self.seq, snapshot_id=f"{before}", sweep_seq=before)]

    def again(self, columns: tuple[tuple[str, str], ...], key: tuple[str, ...]) -> list[Message]:
        """Another primary key, with images: all rows come again after a truncation."""
        sent, rows = [self.form(columns, key)], self.rows
        self.rows = {}
        self.seq += 1
        sent += [
            self._done(self.space.truncate(self.seq, version=self.version)),
            self.space.snapshot("STARTED", self.seq, snapshot_id=f"{self.seq}"),
        ]
        began = self.seq
        for number, row in rows.items():
            self.seq += 1
            self.rows[number] = row
            sent.append(self._done(self._put("r", number)))
        return [*sent, self.space.snapshot("COMPLETED", self.seq, snapshot_id=f"{began}")]

    def expected(self, view: FreshView) -> dict[str, list[Any]]:
        """The rows that a view must show: those before the first event that it can't apply."""
        unknown = [seq for seq, version in self.versions.items() if seq > view.merged and version not in view.schema_versions]
        bound = min(unknown, default=self.seq + 1) - 1
        return self.history[bound]

    def _change(self) -> Message:
        self.seq += 1
        number = self.chance.randrange(8)
        kind = self.chance.choice(("put", "put", "put", "delete", "truncate" if self.chance.random() < 0.2 else "put"))
        if kind == "truncate":
            self.rows.clear()
            return self.space.truncate(self.seq, version=self.version)
        if kind == "delete" and number in self.rows:
            key = self._key(number)
            del self.rows[number]
            return self.space.event("d", key, self.seq, {}, version=self.version)
        self.rows[number] = [number, f"n{number}", self.seq, f"c{self.seq}"][: len(self.columns)]
        return self._put("u", number)

    def _put(self, op: str, number: int) -> Message:
        names = [name for name, _ in self.columns]
        row = dict(zip(names, self.rows[number], strict=False))
        return self.space.event(op, self._key(number), self.seq, {"after": row}, version=self.version)

    def _key(self, number: int) -> Row:
        row = dict(zip([name for name, _ in self.columns], self.rows[number], strict=False))
        return {name: row[name] for name in self.key}

    def _done(self, message: Message) -> Message:
        self.versions[self.seq] = self.version
        self.history[self.seq] = self._shown()
        return message

    def _shown(self) -> dict[str, list[Any]]:
        return {json.dumps(self._key(number), separators=(",", ":")): list(row) for number, row in self.rows.items()}


def shown(view: FreshView, rows: dict[str, Row]) -> dict[str, list[Any]]:
    """Rows by key as values in the order of the fields, taken from the columns of a view, which agree with the text."""
    found = {}
    for key, row in rows.items():
        values = list(json.loads(row["_row"]).values())
        names = view.form.column_names()
        # Rows from before a field was added lack it in their texts.
        typed = [int(row[name]) if isinstance(row[name], Decimal) else row[name] for name in names if row[name] is not None]
        assert typed == values[: len(view.form.fields)]
        found[key] = values
    return found


SHORT = ("longer", "snapshot", "renamed", "rekeyed", "")
LONG = ("", "snapshot", "", "longer", "renamed", "", "snapshot", "rekeyed", "")


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        pytest.param(1, SHORT, id="short", marks=pytest.mark.one_of_these("views and layout", seconds=80)),
        *(pytest.param(seed, LONG, id=f"long-{seed}", marks=pytest.mark.soak) for seed in (1, 2, 3)),
    ],
)
def test_a_view_is_right_whenever_it_was_made(job: Job, seed: int, steps: tuple[str, ...]) -> None:
    """With merges in between, and fields that are added and renamed, another key, truncations, and sweeps."""
    chance = random.Random(seed)
    shop = Shop(chance, Space(job.topics, "users", SPACE_ID))
    job.send(schema(0), *shop.messages(6))
    views = [job.view()]
    for number, step in enumerate(steps, 1):
        sent = shop.messages(chance.randrange(1, 9))
        match step:
            case "snapshot":
                sent += [*shop.snapshot(), *shop.messages(1)]
            case "longer":
                sent += [shop.form(LONGER), *shop.messages(3)]
            case "renamed":
                sent += [shop.form(RENAMED), *shop.messages(3)]
            case "rekeyed":
                sent += [*shop.again(RENAMED, ("id", "title")), *shop.messages(3)]
        job.send(*sent, merges=chance.random() < 0.5)
        newest = job.view()
        views.append(newest)
        # Every time the newest one, and an old one where there is time for it; at the end, all.
        some = {newest} if steps is SHORT else {newest, chance.choice(views)}
        for view in some if number < len(steps) else set(views):
            found = job.seen(view)
            assert shown(view, found) == shop.expected(view)
            if view is newest and shop.expected(view) is shop.history[shop.seq]:
                names = (*META_COLUMNS, *view.form.columns())
                assert {key: {name: row[name] for name in names} for key, row in job.newest().items()} == found
    assert len({view.version for view in views}) > 3


# Stories of spaces that share five batches. The first and the last one are merged. The second and the third one leave out
# something, and with the fourth one everything has been read.

MERGED = (True, False, False, False, True)


def uneven_partitions_and_repeated_batches(job: Job, space: Space) -> Story:
    """What has been read of which partition is shown, as by `read_current`."""
    shop = Shop(random.Random(4), space)
    yield job.topics.append(space.schema(0), *shop.messages(3))
    views = {job.view(space.name)}
    shop.go_on_from(100)
    sent = job.topics.append(*shop.messages(12), *shop.snapshot())
    some = [place for place in sent if place[1] == 1 or place[0] == "shop.snapshot"]
    for batch in (some, [place for place in sent if place[1] == 0 and place[2] < 5], sent):
        yield batch
        views.add(job.view(space.name))
        newest = job.newest(space.name)
        for view in views:
            found = job.seen(view)
            assert found == newest
    assert shown(view, found) == shop.history[shop.seq]


def a_patch_that_stops_the_view_until_it_is_merged(job: Job, space: Space) -> Story:
    rows = space.put("c", {"id": 1, "name": "a", "balance": 1}, 1), space.put("c", {"id": 2, "name": "b"}, 2)
    yield job.topics.append(space.schema(0), *rows)
    plus = [{"op": "+", "field": "balance", "value": 1}]
    yield job.topics.append(
        space.put("u", {"id": 2, "name": "B"}, 101),
        space.update(1, plus, 102),
        space.delete(2, 103),
        space.truncate(104),
        space.put("c", {"id": 3}, 105),
    )
    before, text = job.view(space.name), {'{"id":1}': '{"id":1,"name":"a","balance":1}', '{"id":2}': '{"id":2,"name":"B"}'}
    assert {key: row["_row"] for key, row in job.seen(before).items()} == text
    yield []
    yield []
    yield job.topics.append(space.delete(9, 401))
    assert job.seen(job.view(space.name)) == job.newest(space.name)
    assert list(job.newest(space.name)) == ['{"id":3}']
    seen = job.seen(before)
    assert {key: row["_row"] for key, row in seen.items()} == text
    # Without a table of removed events, as over the events of another job.
    assert job.seen(dataclasses.replace(before, forgotten=None)) == seen


def values_of_every_type_and_names_of_every_kind(job: Job, space: Space) -> Story:
    numbers, others = (
        ("integer", "double", "number", "decimal"),
        ("uuid", "varbinary", "datetime", "array", "map", "any", "scalar"),
    )
    types = ("unsigned", *numbers, "boolean", *others)
    columns = [("id", "unsigned"), *((f"it's a `{kind}` ${{{kind}}} \\", kind) for kind in types)]
    values = (
        "18446744073709551615,-9223372036854775808,1e300,9007199254740993,"
        '"-12345678901234567890.123456789",true,"64d22e4d-ac92-4a23-899a-e59f34af5479","3q2+7w==",'
        '"2024-02-29T23:59:58.123456789+03:00",[1,"𝄞",1.50],{"a":-0.0},"text",1.50'
    )
    odd = 'null,18446744073709551615,"NaN","0.000",null,"no"'
    named = [json.dumps(name) for name, _ in columns]
    yield []
    for seq, texts in ((101, values), (201, odd)):
        pairs = zip(named, [str(seq), *_split(texts)], strict=False)
        row = f"{{{','.join(f'{name}:{text}' for name, text in pairs)}}}"
        message = space.event("c", {"id": seq}, seq, {"after": row})
        yield job.topics.append(*([space.schema(0, columns=columns)] if seq == 101 else []), message)
    view = job.view(space.name)
    assert view.merged == -1
    found, current = job.seen(view), job.newest(space.name)
    assert {key: list(map(str, row.values())) for key, row in found.items()} == {
        key: list(map(str, row.values())) for key, row in current.items()
    }
    assert len(found) == 2
    yield []
    yield job.topics.append(space.delete(101, 401))
    assert job.session.sql(view.query()).dtypes == job.session.table(view.base).dtypes


def columns_of_a_new_form_at_once(job: Job, space: Space) -> Story:
    """The view would otherwise stop at the first row whose columns it doesn't have, until the interval has passed."""
    yield job.topics.append(space.schema(0, columns=LONGER), space.put("c", {"id": 1, "name": "a"}, 1))
    before = job.view(space.name)
    yield []
    yield job.topics.append(space.put("c", {"id": 2, "name": "b"}, 201))
    assert job.view(space.name) == before
    third = space.put("c", {"id": 3, "title": "c"}, 301, version=2)
    yield job.topics.append(space.schema(300, version=2, columns=RENAMED), third)
    assert [row["title"] for row in job.seen(job.view(space.name)).values()] == ["a", "b", "c"]
    assert [row["name"] for row in job.seen(before).values()] == ["a", "b"]


@pytest.mark.one_of_these("views and layout", seconds=50)
def test_a_view_shows_what_sql_can_tell_of_all_that_has_been_read(job: Job) -> None:
    merged = iter(MERGED)

    def take(places: Iterable[Place]) -> None:
        places = list(places)
        # By their places: SQL has changed the odd name of a topic among what it gives back.
        job.topics.taken.update(places)
        job.take(job.topics.at(places), merges=next(merged))

    stories = {
        "uneven": uneven_partitions_and_repeated_batches,
        "patch": a_patch_that_stops_the_view_until_it_is_merged,
        "it's ${all} `\\": values_of_every_type_and_names_of_every_kind,
        "columns": columns_of_a_new_form_at_once,
    }
    side_by_side(job.topics, take, {name: partial(story, job) for name, story in stories.items()})


def _split(texts: str) -> list[str]:
    """The values of JSON that are joined by commas."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(texts):
        _, end = decoder.raw_decode(texts, place)
        found.append(texts[place:end])
        place = end + 1
    return found


@pytest.mark.usefixtures("catalog")
@pytest.mark.one_of_these("views and layout", seconds=40)
def test_a_catalog_has_a_view_of_each_space(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, FreshViews(LOCATION, SparkViews(spark)))

    def names(space: str) -> list[str]:
        return [row["name"] for row in spark.table(f"cdc.shop_{space}_fresh").orderBy("_key").collect()]

    job.send(schema(0), put("c", {"id": 1, "name": "a"}, 1), put("c", {"id": 2, "name": "b"}, 2))
    assert names("users") == ["a", "b"]
    assert tables.read(spark, f"{tmp_path}/users").isEmpty()
    described = spark.sql("DESCRIBE EXTENDED cdc.shop_users_fresh").collect()
    assert [row["data_type"] for row in described if row["col_name"] == "Comment"] == [
        "The newest rows of the space users. The job `current` of tarantool-cdc keeps this view."
    ]
    # Columns that a form adds come with the merge, rows at once.
    longer = schema(3, version=2, columns=LONGER)
    job.send(delete(1, 3), longer, put("c", {"id": 4, "name": "d", "city": "Rome"}, 4, version=2))
    assert names("users") == ["b", "d"]
    job.send(put("c", {"id": 5, "name": "e"}, 5, version=2), merges=True)
    assert [row["city"] for row in spark.table("cdc.shop_users_fresh").collect()].count("Rome") == 1
    # A view moves with the name of its space. One that was made before still shows what had that name.
    before = job.view()
    people = schema(5, space="people", version=3, columns=LONGER), put("c", {"id": 6, "name": "f"}, 6, space="people", version=3)
    users = schema(6, version=4, space_id=600), put("c", {"id": 7, "name": "g"}, 7, version=4, space_id=600)
    job.send(*people, *users, merges=True)
    assert (names("users"), names("people")) == (["g"], ["b", "d", "e", "f"])
    assert sorted(row["name"] for row in job.seen(before).values()) == ["b", "d", "e"]
    # `maintain` isn't confused by it, and a later start leaves what is right. A space that is dropped leaves an empty view.
    assert run.main(["maintain", "--catalog", "spark_catalog.cdc", "--no-vacuum"]) == 1
    job.views = FreshViews(LOCATION, SparkViews(spark))
    job.send(truncate(8, space="people", version=3), put("c", {"id": 8, "name": "h"}, 9, version=4, space_id=600))
    assert (names("users"), names("people")) == (["g", "h"], [])


@pytest.mark.usefixtures("catalog")
@pytest.mark.one_of_these("views and layout")
def test_a_name_that_is_taken(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("CREATE TABLE cdc.shop_users_fresh (id bigint) USING delta")
    job = Job(spark, tmp_path, FreshViews(LOCATION, SparkViews(spark)))
    taken = r"The name spark_catalog\.cdc\.shop_users_fresh, .*is taken by something else.*--no-fresh-views"
    with pytest.raises(JobError, match=taken):
        job.send(schema(0), put("c", {"id": 1}, 1))
    spark.sql("DROP TABLE cdc.shop_users_fresh")
    spark.sql("CREATE VIEW cdc.shop_users_fresh AS SELECT 1 AS id")
    with pytest.raises(JobError, match=taken):
        job.send(put("c", {"id": 2}, 2))
    # A space whose table would have the name of another's view.
    names = Names(spark, LOCATION)
    with pytest.raises(JobError, match=r"shop_users_fresh is there already, .*Choose another --table-template"):
        names.give({"users_fresh": f"{tmp_path}/users"})


@pytest.mark.usefixtures("catalog")
@pytest.mark.one_of_these("views and layout")
def test_a_view_that_needs_removed_events_is_an_error_until_it_is_renewed(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, FreshViews(LOCATION, SparkViews(spark)))
    job.send(schema(0), put("c", {"id": 1}, 1), delete(1, 2))
    # From here on, another process merges, which knows nothing of views.
    views, job.views = job.views, None
    job.send(put("c", {"id": 2}, 3), merges=True)
    assert [row["_key"] for row in spark.table("cdc.shop_users_fresh").collect()] == ['{"id":2}']
    maintain = ["maintain", "--path", str(tmp_path), "--no-vacuum", "--no-optimize"]
    assert run.main(maintain) == 0
    assert spark.table("cdc.shop_users_fresh").count() == 1
    for _ in range(2):
        assert run.main([*maintain, "--vacuum-hours", "0"]) == 0
        with pytest.raises(Py4JJavaError, match="This view is out of date: `maintain` has removed events"):
            spark.table("cdc.shop_users_fresh").collect()
    # A process with views makes it again when it starts, even if no batch comes.
    sink = current_sink(spark, TOPICS, job.path, job.topics, is_background=True, views=views)
    sink.check()
    sink.close()
    assert spark.table("cdc.shop_users_fresh").count() == 1
    job.views = views
    job.send(put("c", {"id": 3}, 4))
    assert spark.table("cdc.shop_users_fresh").count() == 2


@pytest.mark.usefixtures("catalog")
@pytest.mark.one_of_these("views and layout")
def test_a_view_follows_versions_that_maintain_makes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(spark, tmp_path)
    job.send(schema(0), put("c", {"id": 1}, 1), merges=True)
    lake = Lake.at(spark, str(tmp_path))
    views, users = FreshViews(LOCATION, SparkViews(spark)), {"users": lake.table("users")}

    def version() -> int:
        views.renew(lake, users)
        text = next(
            row["data_type"] for row in spark.sql("DESCRIBE EXTENDED cdc.shop_users_fresh").collect() if row[0] == "View Text"
        )
        return int(text.partition("VERSION AS OF ")[2].split()[0])

    made = version()
    tables.set_properties(spark, users["users"].path, {"some": "thing"})
    assert version() == made
    monkeypatch.setattr(fresh_views, "_REFRESH_SECONDS", 0.0)
    assert version() == made + 1


def test_there_are_none_in_other_catalogs_or_if_not_wanted(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert FreshViews.at(spark, Location(schema=("lake", "cdc"), prefix="shop")) is None
    assert "current: no views in --catalog lake.cdc: Spark creates them in spark_catalog and, with" in capsys.readouterr().err
    assert FreshViews.at(spark, LOCATION) is not None
    assert capsys.readouterr().err == ""
