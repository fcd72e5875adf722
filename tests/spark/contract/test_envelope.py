"""Messages to changes: texts to the byte, wrong input refused by name."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.envelope import CONTROL, parse, with_fault_column
from spark_jobs.errors import operator_message
from tests.spark.messages import GOLDEN, FakeTopics, Message, event, golden, put, truncate

pytestmark = pytest.mark.spark

CHANGES = sorted(path.stem for path in GOLDEN.glob("*.jsonl") if not path.stem.startswith(("schema", "snapshot", "transaction")))

TRICKY = '",\\"source\\":{\\"version\\":\\",},\\"after\\":{"'
NESTED = '{"x":{},"after":{},"source":{"version":1},"b":{},"after":{}}'


def read(spark: SparkSession, *messages: Message) -> list[Row]:
    topics = FakeTopics(spark)
    return parse(topics.send(*messages)).orderBy("source.seq").collect()


def test_golden_messages_are_read_to_the_byte(spark: SparkSession) -> None:
    messages = [message for name in CHANGES for message in golden(name) if message.key is not None]
    expected = [message for message in messages if message.value is not None]
    rows = {(row["topic"], row["key"], row["source"]["seq"], row["op"]): row for row in read(spark, *messages)}
    assert len(rows) == len(expected) < len(messages)
    for message in expected:
        assert message.value is not None
        value = json.loads(message.value)
        row = rows[message.topic, message.key, value["source"]["seq"], value["op"]]
        pieces = "".join(f',"{name}":{row[name]}' for name in ("patch", "upsert") if row[name] is not None)
        head = f'{{"op":"{row["op"]}","before":{row["before"] or "null"},"after":{row["after"] or "null"}{pieces},'
        assert message.value.startswith(f'{head}"source":')
        source = row["source"].asDict()
        assert {name: source[name] for name in value["source"]} == value["source"]
        assert (row["transaction"].asDict() if row["transaction"] else None) == value["transaction"]
        assert (row["ts_ms"], row["ts_us"], row["ts_ns"]) == (value["ts_ms"], value["ts_us"], value["ts_ns"])


LIKE_ENVELOPES = [
    ("u", {"before": f'{{"id":1,"d":{NESTED}}}', "after": f'{{"id":1,"d":{NESTED}}}'}),
    ("d", {"before": f'{{"id":1,"d":{NESTED}}}'}),
    ("c", {"after": f'{{"id":1,"d":{NESTED},"t":{TRICKY},"n":1e300,"big":18446744073709551615,"s":"\\u0001𝄞"}}'}),
    ("u", {"patch": '[{"op":"=","field":"d","value":[{"a":[],"upsert":{}}]}]', "upsert": '{"id":1,"p":{"a":[],"upsert":{}}}'}),
    ("u", {"patch": '[{"op":"=","field":"d","value":{"a":[1],"upsert":{}}}]'}),
]


def test_rows_that_look_like_envelopes_are_cut_out_whole(spark: SparkSession) -> None:
    found = read(spark, *(event(op, {"id": 1}, seq, rows) for seq, (op, rows) in enumerate(LIKE_ENVELOPES)))
    for row, (_, rows) in zip(found, LIKE_ENVELOPES, strict=True):
        assert {name: row[name] for name in ("before", "after", "patch", "upsert") if row[name] is not None} == rows


def test_a_source_of_any_length_is_found(spark: SparkSession) -> None:
    # The mark of `source` is looked for in the last 256 bytes of a message, then in the last 512, then in all of it.
    messages: list[Message] = []
    for seq, count in enumerate((1, *range(245, 270), *range(500, 526), 3000), 1):
        after = f'{{"id":{seq},"n":1e300}}'  # where the mark isn't found, Spark writes it as 1.0E300
        source = f',"source":{{"version":"","table":"users","space_id":512,"seq":{seq},"schema_version":1}}}}'
        source = source.replace('""', f'"{"x" * (count - len(source))}"', 1)
        messages.append(Message("shop.users", '{"id":1}', f'{{"op":"c","before":null,"after":{after}{source}'))
    rows = read(spark, *messages)
    assert [row["after"] for row in rows] == [f'{{"id":{seq},"n":1e300}}' for seq in range(1, len(messages) + 1)]


def test_a_message_in_another_order_and_spacing_is_read_as_equal_json(spark: SparkSession) -> None:
    message = put("c", {"id": 1, "f": 1.5, "t": "ä"}, 3)
    assert message.value is not None
    members = dict(reversed(json.loads(message.value).items()))
    (row,) = read(spark, Message(message.topic, message.key, json.dumps(members, indent=1)))
    assert (row["op"], row["source"]["seq"], json.loads(row["after"])) == ("c", 3, {"id": 1, "f": 1.5, "t": "ä"})


def test_a_truncation_needs_no_key(spark: SparkSession) -> None:
    assert [(row["op"], row["key"], row["partition"]) for row in read(spark, truncate(5))] == [("t", None, 0), ("t", None, 1)]


NO_ENVELOPES = [
    "garbage",
    "",
    "[]",
    "null",
    '"text"',
    "{}",
    '{"op":"c"}',
    '{"op":"c","before":null,"after":{"id":1}}',
    '{"op":"x",VALID',
    '{"op":5,VALID',
    '{"op":"u",VALID',
    '{"op":"c","before":null,"after":[1],SOURCE',
    """{"op":"c","before":null,"after":{'id':1},SOURCE""",
    '{"op":"c","before":null,"after":{"id":NaN},SOURCE',
    '{"op":"c","before":null,"after":5,SOURCE',
    '{"op":"u","before":"text","after":{"id":1},SOURCE',
    '{"op":"u","before":null,"after":null,"patch":{"op":"="},SOURCE',
    '{"op":"c","before":null,"after":{"id":1},"source":{"version":"1","table":"users","space_id":1,"seq":"x","schema_version":1}}',
    '{"op":"c","before":null,"after":{"id":1},"source":{"version":"1","table":"users","space_id":1,"schema_version":1}}',
    '{"op":"c","before":null,"after":{"id":1},"source":{"version":"1","table":"users","space_id":1,"seq":-1,"schema_version":1}}',
    '{"op":"c","before":null,"after":{"id":1},"source":{"version":"1","table":"users","space_id":1,"seq":1,"schema_version":1}',
    '{"op":"c","before":null,"after":{"id":1},"source":{"version":"1","table":"","space_id":1,"seq":1,"schema_version":1}} .',
]


def test_what_is_no_envelope_is_refused_with_its_place(spark: SparkSession) -> None:
    rest = '"before":null,"after":null,"source":{"version":"1","table":"users","space_id":1,"seq":1,"schema_version":1}}'
    source = rest.partition('"after":null,')[2]
    values = [value.replace("VALID", rest).replace("SOURCE", source) for value in NO_ENVELOPES]
    topics = FakeTopics(spark)
    sent = topics.send(put("c", {"id": 3}, 1), *(Message("shop.users", '{"id":1}', value) for value in values))
    partition = sum(b'{"id":1}') % 2
    first = 1 if sum(b'{"id":3}') % 2 == partition else 0
    bad = sent.where(f"partition = {partition} and offset >= {first}")
    told = {row["offset"]: row["sentence"] for row in with_fault_column(bad).collect()}
    for offset, value in enumerate(values, first):
        begin = f"topic shop.users, partition {partition}, offset {offset} holds something that is no change event"
        assert (told[offset] or "").startswith(begin), value
    for offset in (first, first + len(values) - 1):
        with pytest.raises(PySparkException) as raised:
            parse(sent.where(f"partition <> {partition} or offset = {offset}")).collect()
        assert operator_message(raised.value) == told[offset]


def test_a_damaged_event_is_told_without_its_row(spark: SparkSession) -> None:
    change = put("c", {"id": 1, "name": "secret"}, 1)
    text = str(change.value)[:-1]
    (told,) = with_fault_column(FakeTopics(spark).send(Message(change.topic, change.key, text))).collect()
    assert told["sentence"].endswith(
        f"offset 0 holds something that is no change event: a damaged event of {len(text)} characters"
    )


def test_an_event_that_spark_cannot_read_is_not_called_damaged(spark: SparkSession) -> None:
    change = put("c", {"id": 1, "tags": {"k" * 50_001: "secret"}}, 1)
    (told,) = with_fault_column(FakeTopics(spark).send(change)).collect()
    assert (
        "an event with a name of a field, or a key of a map, of more characters than Spark can read (50,000)" in told["sentence"]
    )
    assert "kk" not in told["sentence"]


def test_a_change_whose_key_is_no_json_object_is_refused_with_its_place(spark: SparkSession) -> None:
    value, keys = put("c", {"id": 1}, 1).value, ["", "5", "null", "[1]", "abc", '"{}"', '{"id":1', None]
    sent = FakeTopics(spark).send(*(Message("shop.users", key, value) for key in keys))
    rows = with_fault_column(sent.withColumn("key", F.col("key").cast("string"))).collect()
    found = [(row["key"], row["sentence"]) for row in rows]
    assert {key for key, _ in found} == set(keys)
    for key, sentence in found:
        assert sentence.endswith(
            f" holds something that is no change event: the record's key isn't a JSON object: {'null' if key is None else key}"
        )
    with pytest.raises(PySparkException) as raised:
        parse(sent.where("key = 'abc'")).collect()
    assert operator_message(raised.value) == next(sentence for key, sentence in found if key == "abc")


def test_a_filter_behind_the_reading_does_not_read_twice(spark: SparkSession) -> None:
    sent = FakeTopics(spark).send(put("c", {"id": 1}, 1))
    # Rows that are at hand would be read already when the plan is made.
    records = spark.createDataFrame(sent.collect(), sent.schema)
    changes = parse(records).where("op <> 't' and source.seq > 0")
    plan = changes._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json") == 1


def test_control_records_come_through_unread(spark: SparkSession) -> None:
    topics = FakeTopics(spark)
    rows = parse(topics.send(*golden("schema-create"), *golden("r")), control=["shop.schema"]).orderBy("op").collect()
    assert [(row["op"], row["source"] is None) for row in rows] == [(CONTROL, True), ("r", False)]
