"""Schema topics are read once for all who ask, and again where they have new records."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.schema_topics import schema_records
from spark_jobs.contract.source import Topics
from tests.spark.messages import FakeTopics, Message

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Counted(Topics):
    """Topics that note which ones are read, of which some may not be read."""

    fake: FakeTopics | None = None
    reads: list[tuple[str, ...]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def read(self, session: SparkSession, *topics: str) -> DataFrame:  # noqa: ARG002 - as it is called
        self.reads.append(topics)
        if self.refused.intersection(topics):
            raise Py4JError("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics")
        assert self.fake is not None
        return reduce(DataFrame.union, map(self.fake.read, topics))


@dataclass
class Client:
    """Stands in for Kafka's clients."""

    fake: FakeTopics

    def ends(self, topics: list[str]) -> dict[tuple[str, int], int]:
        return {place: len(log) for place, log in self.fake.messages.items() if place[0] in topics}


def test_a_topic_is_read_again_only_if_it_has_other_records(spark: SparkSession) -> None:
    fake = FakeTopics(spark)
    topics, client = Counted("k", "shop", fake=fake), Client(fake)
    named = ["shop.s1.schema", "shop.s2.schema", "shop.none.schema"]

    def read() -> dict[str, list[str]]:
        found = schema_records(spark, topics, client, named)  # type: ignore[arg-type]
        return {topic: sorted(values) for topic, values in found.items()}

    fake.append(
        Message(named[0], "a", "1"), Message(named[0], "b", "2"), Message(named[1], "a", "3"), Message(named[1], "a", None)
    )
    expected = {named[0]: ["1", "2"], named[1]: ["3"], named[2]: []}
    assert (read(), read(), topics.reads) == (expected, expected, [tuple(named[:2])])
    fake.append(Message(named[1], "b", "4"))
    assert (read(), topics.reads[1:]) == ({**expected, named[1]: ["3", "4"]}, [(named[1],)])


def test_a_topic_that_may_not_be_read_counts_as_empty_and_the_others_are_read(spark: SparkSession) -> None:
    fake = FakeTopics(spark)
    topics, client = Counted("k", "shop", fake=fake), Client(fake)
    named = ["shop.s1.schema", "shop.schema"]
    fake.append(Message(named[0], "a", "1"), Message(named[1], "a", "2"))
    topics.refused.add(named[0])
    assert schema_records(spark, topics, client, named) == {named[0]: (), named[1]: ["2"]}  # type: ignore[arg-type]
    # Once the right is given, it is read without a new record.
    topics.refused.clear()
    assert schema_records(spark, topics, client, named) == {named[0]: ["1"], named[1]: ["2"]}  # type: ignore[arg-type]
    assert topics.reads == [tuple(named), (named[0],), (named[1],), (named[0],)]
