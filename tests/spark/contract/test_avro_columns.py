"""What Spark is told to read of events in Avro. That the texts are right is shown with Spark, in test_avro_envelope.py."""

from __future__ import annotations

import json
from typing import Any

from spark_jobs.contract.avro_columns import event_reading, key_reading
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS, CHANGES_COLUMNS, COLUMNS_OF_READERS, members_of
from tests.fakes.master import Master
from tests.formats.oracles import Ids, published

FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "unsigned"}, {"name": "sum", "type": "decimal"}]


def schemas(fields: list[dict[str, Any]], **options: Any) -> tuple[str, str]:
    """The schemas of the keys and of the events of a space."""
    ids = Ids()
    master = Master("2.11")
    master.create_space("users", fields, ((0, "unsigned"),))
    work = options.pop("work", lambda given: given.delete("users", 1))
    published(master, work, ids, images=options.pop("images", True), key="avro", value="avro", **options)
    by_kind = {one.subject.rpartition("-")[2]: one.text for one in ids.schemas if ".users-" in one.subject}
    return by_kind["key"], by_kind["value"]


def test_only_what_is_wanted_is_read_and_each_record_is_defined_once() -> None:
    _, text = schemas(FIELDS)
    found = event_reading(text, {"op": None, "after": None, "source": ["seq", "table"]}, "event")
    assert found is not None
    reader = json.loads(found.reader)
    assert [field["name"] for field in reader["fields"]] == ["op", "after", "source"]
    # The record of rows is defined in `before`, which isn't read.
    assert [field["name"] for field in reader["fields"][1]["type"][1]["fields"]] == ["id", "sum"]
    assert found.fields == {"source": ["table", "seq"]}
    assert found.texts.keys() == {"after"}
    both = event_reading(text, {"before": None, "after": None}, "event")
    assert both is not None
    assert (
        json.loads(both.reader)["fields"][1]["type"][1] == json.loads(both.reader)["fields"][0]["type"][1]["namespace"] + ".Value"
    )


def test_what_sql_cant_read_has_no_reading() -> None:
    key, text = schemas([*FIELDS, {"name": "Sum", "type": "string"}])
    wanted = {"op": None, "after": None}
    assert event_reading(text, wanted, "event") is None
    assert event_reading(text, {"op": None}, "event") is not None
    assert key_reading(key, "key") is not None
    assert event_reading(key, wanted, "event") is None, "a key is no event"


def test_the_members_that_columns_need() -> None:
    readers = {name: CHANGES_COLUMNS[name] for name in COLUMNS_OF_READERS}
    assert members_of(readers) == {"after", "patch", "upsert", "transaction.total_order"}
    assert members_of(CHANGES_COLUMNS) == members_of(readers) | {"before", "transaction.id"}
    assert members_of(CHANGELOG_COLUMNS) == members_of(CHANGES_COLUMNS) | {"transaction.data_collection_order", "ts_us"}
