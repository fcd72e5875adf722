"""Exactly once, as far as the core decides it: crashes at any moment, commits at any boundary, bytes in any pieces.

What was committed in the end is compared with what one undisturbed connection gives, and with the master's own contents.
"""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cdc.events.json_values import encode, plain
from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes.captures import pieces
from tests.fakes.lives import go_a_step
from tests.fakes.master import Master
from tests.fakes.profiles import SOME
from tests.fakes.replica import Replica
from tests.fakes.shop import Sent, read
from tests.fakes.workload import Workload


def disturbed(seed: int, *, simple: bool) -> tuple[Master, Workload, list[Message | Broadcast], list[Message | Broadcast]]:
    """A random life of a replica on a random workload; what it committed, and what an undisturbed one did."""
    rng = random.Random(seed)
    master = Master(rng.choice(["2.6", "2.11", "3.3"]))
    work = Workload(master, rng, simple=simple)
    work.run(15)
    memory = rng.choice([200, 10**9])
    steady = Replica(master)
    replica = Replica(
        master,
        cut=pieces(rng.choice([1, 7, 300, 9000]) for _ in range(5000)),
        transaction_bytes_max=memory,
        batch_bytes_max=rng.choice([1, 1500, 10**6]),
    )
    steady.connect()
    replica.connect()
    for _ in range(25):
        what = rng.choice(["work", "work", "relay", "relay", "receive", "receive", "commit", "commit", "ack", "crash", "beat"])
        if go_a_step(what, replica, rng, work.run):
            continue
        match what:
            case "ack":
                replica.acknowledge()
            case "beat":
                replica.relay.heartbeat()
            case _:
                replica.crash()
                replica.connect()
    for each in (replica, steady):
        each.relay.relay()
        each.relay.heartbeat()
        each.receive()
        each.commit()
        each.acknowledge()
        assert each.relay.acks[-1].vclock == master.vclock
    return master, work, replica.topics.committed, steady.topics.committed


@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_the_committed_messages_are_those_of_an_undisturbed_life(seed: int) -> None:
    _, _, found, expected = disturbed(seed, simple=False)
    assert found == expected
    seqs = [sent.source["seq"] for sent in map(read, found) if sent.op]
    assert seqs == list(range(1, len(seqs) + 1))


def shown(value: Any) -> Any:
    return json.loads(encode(plain(value)))


def applied(rows: dict[str, dict[str, Any]], sent: Sent) -> None:
    """What a consumer that keeps rows does with one event."""
    if sent.op == "t":
        rows.clear()
        return
    key = json.dumps(sent.key)
    if sent.op == "d":
        rows.pop(key, None)
    elif sent.value["after"] is not None:
        rows[key] = sent.value["after"]
    elif "upsert" in sent.value and key not in rows:
        rows[key] = sent.value["upsert"]
    elif key in rows:
        for operation in sent.value["patch"]:
            field = operation["field"]
            rows[key][field] = operation["value"] if operation["op"] == "=" else rows[key][field] + operation["value"]


@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_applied_they_are_the_contents_of_the_master(seed: int) -> None:
    master, work, found, _ = disturbed(seed, simple=True)
    topics: dict[str, dict[str, dict[str, Any]]] = {}
    for sent in map(read, found):
        if sent.op:
            applied(topics.setdefault(sent.topic, {}), sent)
    fields = ["id", "name", "n", "any"]
    for name in work.names:
        expected = [dict(zip(fields, map(shown, row), strict=False)) for row in master.contents(name)]
        rows = topics.get(f"shop.{name.replace(' ', '_')}", {})
        assert sorted(rows.values(), key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
