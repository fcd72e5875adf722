"""Which events may be processed: whatever order partitions are read in, none before an older one that is still to come."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, cast

from spark_jobs.contract.source import Topics
from spark_jobs.lake.positions import KafkaPositions
from spark_jobs.materialize.order import Order, Partition


def test_an_event_waits_for_partitions_that_are_behind() -> None:
    a, b = ("shop.users", 0), ("shop.people", 0)
    first = Order().after({a: 3, b: 12}, {a: 3, b: 4}, {a: 6, b: 4})
    assert (first.complete, first.newest) == (3, 12)
    second = first.after({a: 6}, {a: 6, b: 4}, {a: 6, b: 4})
    assert second.complete == 12
    # A partition that had all of it is no reason to wait for longer than since then.
    assert second.after({a: 20}, {a: 7, b: 4}, {a: 7, b: 5}).complete == 12
    # A partition of which nothing is known yet holds everything up, but nothing is taken back.
    assert second.after({a: 20}, {a: 7, b: 4}, {a: 7, b: 4, ("shop.new", 0): 1}).complete == 12
    assert second.after({a: 20}, {a: 7, b: 4}, {a: 7, b: 4, ("shop.new", 0): 0}).complete == 20
    assert second.after({}, {}, {}).complete == 12
    assert Order.from_json(second.to_json(first)) == (second, 3)


def test_no_event_is_ready_before_an_older_one(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(200):
        places: list[Partition] = [("t", number) for number in range(4)]
        logs: dict[Partition, list[int]] = {place: [] for place in places}
        read = dict.fromkeys(places, 0)
        order, seq, processed = Order(), 0, set[int]()
        waiting: set[int] = set()
        for _ in range(30):
            for _ in range(random_.randrange(6)):
                seq += 1
                logs[random_.choice(places)].append(seq)
            found = {}
            for place, log in logs.items():
                end = random_.randint(read[place], len(log))
                if end > read[place]:
                    waiting |= set(log[read[place] : end])
                    found[place] = log[end - 1]
                read[place] = end
            # Between reading and asking for the ends, the daemon goes on.
            if random_.random() < 0.5:
                seq += 1
                logs[random_.choice(places)].append(seq)
            order = order.after(found, read, {place: len(log) for place, log in logs.items()})
            ready = {one for one in waiting if one <= order.complete}
            unread = {one for place, log in logs.items() for one in log[read[place] :]}
            assert not unread or not ready or max(ready) < min(unread)
            waiting -= ready
            processed |= ready
        order = order.after(
            {place: log[-1] for place, log in logs.items() if log},
            {place: len(log) for place, log in logs.items()},
            {place: len(log) for place, log in logs.items()},
        )
        assert order.complete == seq


def test_no_event_waits_for_a_busy_topic_of_another_daemon() -> None:
    class Client:
        """Two topics under the prefix."""

        def of_spaces(self) -> list[str]:
            return ["shop.users", "shop.eu.users"]

        def ends(self, topics: Collection[str]) -> dict[tuple[str, int], int]:
            return {(topic, 0): 100 for topic in topics}

    topics = Topics("k:9092", "shop")
    positions = KafkaPositions(cast("Any", None), topics, "checkpoint", cast("Any", Client()))
    read_up_to = {("shop.users", 0): 100, ("shop.eu.users", 0): 90}
    found = {("shop.users", 0): 7}
    assert Order().after(found, read_up_to, positions.ends()).complete == -1
    topics.known.foreign = frozenset({"shop.eu.users"})
    assert Order().after(found, read_up_to, positions.ends()).complete == 7
