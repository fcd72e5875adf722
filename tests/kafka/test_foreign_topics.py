"""Topics that belong to somebody else are named, and nothing is written to them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from cdc.config import KafkaSection
from cdc.errors import PublishError
from cdc.kafka.clients import Admin
from cdc.kafka.foreign_topics import ForeignTopics
from cdc.kafka.publisher import Publisher
from cdc.stream.commits.checkpoint import Writer
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_lost_topics import batch, until_it_ends
from tests.kafka.test_publisher import MODES, Mode, config_of, row


def event(name: str) -> bytes:
    return json.dumps({"op": "c", "source": {"name": name, "seq": 1}}).encode()


def form(name: str, space: str) -> bytes:
    return json.dumps({"source": {"name": name}, "tableChanges": [{"type": "CREATE", "id": f'"{space}"'}]}).encode()


def cluster_with(**topics: list[bytes | None]) -> Cluster:
    """Topics by name, with `__` for a dot, and the values of their records."""
    cluster = Cluster()
    for name, values in topics.items():
        topic = name.replace("__", ".")
        cluster.partitions[topic] = 1
        cluster.records += [(topic, 0, b"key", value) for value in values]
    return cluster


def check(cluster: Cluster, prefix: str, *wanted: str, known: Collection[str] = ()) -> None:
    made: Any = clients(cluster)
    admin: Admin = made.admin()
    ForeignTopics(KafkaSection(bootstrap_servers="h:1", topic_prefix=prefix), made).check(
        admin, wanted, cluster.partitions, known
    )


def test_two_prefixes_that_have_a_topic_in_common() -> None:
    """Whoever comes second is refused, also where the topic isn't there, or was used before."""
    cluster = cluster_with(shop__schema=[form("shop", "eu.users")], shop__eu__schema=[form("shop.eu", "orders")])
    with pytest.raises(PublishError, match=r"shop\.eu\.users is also a topic of the daemon with kafka\.topic_prefix 'shop'"):
        check(cluster, "shop.eu", "shop.eu.users", known=["shop.eu.users"])
    with pytest.raises(PublishError, match=r"shop\.eu\.orders is also a topic .* 'shop\.eu'.*another kafka\.topic_prefix"):
        check(cluster, "shop", "shop.users", "shop.eu.orders")
    check(cluster, "shop", "shop.eu.users", "shop.eu.people", "shop.users")
    check(cluster, "shop.eu", "shop.eu.orders", "shop.eu.people")


def test_a_space_whose_topic_is_another_daemons_control_topic() -> None:
    cluster = cluster_with(shop__eu__schema=[form("shop.eu", "orders")])
    with pytest.raises(PublishError, match=r"shop\.eu\.checkpoint is also a topic"):
        check(cluster, "shop", "shop.eu.checkpoint")


def test_names_that_kafka_does_not_distinguish() -> None:
    cluster = cluster_with(shop__a__b=[event("shop")], shop_users__x=[b"?"])
    for wanted, other in (("shop.a_b", "shop.a.b"), ("shop.users_x", "shop_users.x")):
        with pytest.raises(PublishError, match=rf"{wanted} can't be created, as there is {other}: .*collide.*spaces\.exclude"):
            check(cluster, "shop", wanted)
    check(cluster_with(shop__a__b=[], shop__a_b=[]), "shop", "shop.a.b", "shop.a_b")
    check(Cluster(), "shop", "shop.a.b", "shop.a_b")


def test_a_space_that_is_called_like_a_schema_topic_is_no_daemon() -> None:
    check(cluster_with(shop__eu__schema=[event("shop")]), "shop", "shop.eu.schema", "shop.eu.users")


@pytest.mark.parametrize(
    ("values", "whose"),
    [
        ([event("other")], "of the daemon with kafka.topic_prefix 'other'"),
        ([b"a line"], "of another program"),
        ([b'{"source":[]}', None], "of another program"),
    ],
)
def test_records_of_others(values: list[bytes | None], whose: str) -> None:
    cluster = cluster_with(shop__users=values)
    with pytest.raises(PublishError, match=rf"shop\.users exists, and its records are {whose}"):
        check(cluster, "shop", "shop.users")
    check(cluster, "shop", "shop.users", known=["shop.users"])
    assert not [topic for topic in cluster.reads if topic != "shop.users"]


@pytest.mark.parametrize("values", [[], [None], [event("shop")], [b"a line", event("shop")]])
def test_topics_that_are_empty_or_our_own(values: list[bytes | None]) -> None:
    check(cluster_with(shop__users=values, shop__schema=[b"?"]), "shop", "shop.users", "shop.schema", "shop.new")


@pytest.mark.parametrize("mode", MODES)
def test_a_publisher_writes_nothing_there(mode: Mode) -> None:
    cluster = cluster_with(shop__users=[event("other")])
    publisher = Publisher("x", config_of(mode), Writer("writer", has_store=False), clients(cluster))
    publisher.start()
    found = batch(1, ("shop.users", b"1", row(1)))
    found.topics = ["shop.users"]
    publisher.submit(found)
    with pytest.raises(PublishError, match=r"shop\.users exists"):
        until_it_ends(publisher.collect)
    publisher.stop(5)
    assert len(cluster.written("shop.users")) == 1
