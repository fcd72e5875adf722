"""What may be rolled back is not published, and what is certain is, once: random logs of a master whose transactions wait,
served to a replica that is cut, crashed and started again at its last commit; held against an oracle that knows only the log.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.fakes.captures import pieces
from tests.fakes.consumer import Consumer
from tests.fakes.fates import Contents, Expected, Fates, data_rows
from tests.fakes.interleavings import LimboWorkload, WatchedReplica, streamed
from tests.fakes.master import VERSIONS
from tests.fakes.shop import Sent, read
from tests.fakes.synchronous import ALL_OF_THEM, SHARED, SynchronousMaster
from tests.fakes.wire import pack

SEEDS = range(70 if os.environ.get("TARANTOOL_CDC_PURE") else 200)
"""Some faults show in a single one of the 200 lives. `make check` and `make test` run these tests twice, though, and what waits
is the same on both row paths: where the path in Python is asked for, fewer are enough for how the two work together."""


class Life:
    """One master and one replica, from one seed."""

    def __init__(self, seed: int, *, images: bool = True) -> None:
        self.rng = rng = random.Random(seed)
        self.master = SynchronousMaster(list(VERSIONS)[seed % len(VERSIONS)])
        self.work = LimboWorkload(self.master, rng, rng.choice([1, 2, 3]))
        self.work.run(5)
        self.work.finish()  # a snapshot is taken only of what is certain
        self.begin = len(self.master.log)
        self.images = images
        self.replica = WatchedReplica(
            self.master,
            images=images,
            cut=pieces(rng.choice([1, 7, 300, 9000]) for _ in range(5000)),
            transaction_bytes_max=rng.choice([150, 600, 10**9]),
            batch_bytes_max=rng.choice([1, 1500, 10**6]),
            chunk_bytes=rng.choice([100, 1000]),
        )
        self.replica.connect()
        if images:
            # A store that lacks the end of its snapshot would ask for another one, and those are held elsewhere.
            self.replica.flush()

    def live(self, steps: int = 25) -> None:
        """Steps of the master's and the replica's, in any order."""
        rng, replica = self.rng, self.replica
        for _ in range(steps):
            match rng.choice(
                ["work", "work", "relay", "relay", "relay", "commit", "commit", "crash", "move", "flush", "finish", "ack"]
            ):
                case "work":
                    self.work.run(rng.randint(1, 6))
                case "relay":
                    replica.relay.relay(rng.choice([1, 1, 2, 5, 20, None]))
                    replica.receive()
                    self.check()
                case "commit":
                    replica.commit(rng.choice([1, 2, None]))
                case "flush" if self.images:
                    replica.flush()
                case "finish" if rng.random() < 0.3:
                    self.work.finish()
                case "ack":
                    replica.acknowledge()
                case "crash":
                    replica.crash()
                    replica.connect()
                    assert replica.snapshot is None
                case "move":
                    # To another member, whose log leads from the store to the checkpoint by another way.
                    replica.crash()
                    self.master.reorder(rng, self.begin)
                    replica.connect()
                    assert replica.snapshot is None

    def end(self) -> None:
        """Everything arrives and is durable, with what waits still waiting; and once more when nothing waits."""
        for is_finished in (False, True):
            if is_finished:
                self.work.finish()
            self.replica.relay.relay()
            self.replica.receive()
            self.replica.commit()
            self.check()
        if self.images:
            self.replica.flush()
        self.replica.acknowledge()
        assert self.replica.relay.acks[-1].vclock == self.master.vclock, "nothing waits, and the position is held back"

    def check(self) -> None:
        """What is out, or on its way, is what is certain: nothing else, all of it, once and in order."""
        seqs = [sent.source["seq"] for sent in map(read, self.replica.seen()) if sent.op]
        assert seqs == list(range(1, len(seqs) + 1))
        found: dict[int, list[Any]] = {}
        for sent in streamed(self.replica.seen()):
            found.setdefault(sent.source["replica_id"], []).append(told(sent) if self.images else place_of(sent))
        now, ever = self.replica.fates(), Fates.of(self.master.written, len(self.master.log))
        least, most = self.expected(now), self.expected(ever)
        for origin in {*found, *most}:
            events = found.get(origin, [])
            assert events == most.get(origin, [])[: len(events)], f"origin {origin}: something else than what is certain"
            # While the images are brought up to where consumers are, what is new to these has to wait.
            if not self.replica.pipeline.is_catching_up:
                assert len(events) >= len(least.get(origin, [])), (
                    f"origin {origin}: {len(least[origin]) - len(events)} are missing"
                )

    def expected(self, fates: Fates) -> dict[int, list[Any]]:
        """The events, by origin; without images only which rows have one."""
        before, after = parts(fates, self.begin)
        if not self.images:
            return dict(data_rows(after))
        contents = Contents()
        contents.events(before)
        return dict(contents.events(after))


def parts(fates: Fates, row_count: int) -> tuple[list[Any], list[Any]]:
    """What was published with the snapshot, and what has to come by the stream."""
    before = [entry for entry in fates.published if entry.end <= row_count]
    return before, [entry for entry in fates.published if entry.end > row_count]


def place_of(sent: Sent) -> tuple[int, int]:
    return sent.source["lsn"], sent.source["space_id"]


def told(sent: Sent) -> Expected:
    """An event as the oracle writes it."""
    after = sent.value["after"]
    return Expected(*place_of(sent), str(sent.op), None if after is None else list(after.values()))


@pytest.fixture
def small_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every other life what waited on disk comes out in pieces, and out of many files."""
    monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.ENTRY_BYTES", 0)
    if seed % 2:
        monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.SMALL_BYTES", 100)
        monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.SPOOL_BYTES", 300)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_out_is_what_is_certain(seed: int) -> None:
    life = Life(seed)
    life.live()
    life.end()
    check_contents(life)
    check_mentions(life)
    life.replica.crash()
    assert all(spool.is_closed for spool in life.replica.spools)


def check_contents(life: Life) -> None:
    """Consumer, images, oracle and master agree, row by row and byte by byte."""
    replica, master = life.replica, life.master
    consumer = Consumer()
    consumer.take(map(read, replica.topics.committed))
    oracle = Contents()
    oracle.events(Fates.of(master.written, len(master.log)).published)
    images = replica.pipeline.images
    assert images is not None
    spaces = [SHARED, *(space for origin in (1, 2, 3) for space in master.spaces_of(origin))]
    assert set(spaces) == set(oracle.rows)
    for space in spaces:
        expected = sorted(map(pack, master.contents(space)))
        assert sorted(map(pack, oracle.rows[space].values())) == expected, "the oracle and the master disagree"
        assert sorted(tuple_ for _, tuple_ in images.scan(space)) == expected
        assert sorted(pack(list(row.values())) for row in consumer.contents(space)) == expected
    assert replica.tuples is not None
    assert set(replica.tuples.space_ids()) <= set(spaces)


def check_mentions(life: Life) -> None:
    """Nothing of what has vanished is mentioned: no event, no BEGIN or END, no form."""
    fates = Fates.of(life.master.written, len(life.master.log))
    gone = {(row.origin, row.lsn) for entry in fates.vanished for row in entry.rows}
    for sent in map(read, life.replica.topics.committed):
        if isinstance(sent.value, dict) and (source := sent.value.get("source")) is not None:
            assert (source.get("replica_id"), source.get("lsn")) not in gone, sent
        if isinstance(sent.value, dict) and "status" in sent.value and "id" in sent.value:
            origin, _, tsn = sent.value["id"].partition(":")
            assert (int(origin), int(tsn)) not in gone, sent


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", SEEDS[::5])
def test_without_images_too(seed: int) -> None:
    life = Life(seed, images=False)
    life.live()
    life.end()
    life.replica.crash()
    assert all(spool.is_closed for spool in life.replica.spools)


def test_the_lives_have_everything_in_them() -> None:
    """Else the tests above would prove little."""
    kinds: dict[str, int] = {}

    def count(name: str, number: int = 1) -> None:
        kinds[name] = kinds.get(name, 0) + number

    for seed in SEEDS[:60]:
        rng = random.Random(seed)
        master = SynchronousMaster(list(VERSIONS)[seed % len(VERSIONS)])
        work = LimboWorkload(master, rng, 3)
        work.run(80)
        work.finish()
        fates = Fates.of(master.written, len(master.log))
        for entry in master.written:
            count(str(entry.kind or ("synchronous" if entry.is_sync else "asynchronous")))
            count("long", len(entry.rows) > 1)
            count("unnamed", entry.limit == ALL_OF_THEM)
            count("a successor's", entry.kind is not None and entry.owner not in (0, entry.origin))
        for entry in fates.vanished:
            count("vanished")
            count("vanished definition", any(row.body.get(0x10) == 280 for row in entry.rows))
            count("vanished asynchronous", not entry.is_sync)
    rows = {"40", "41", "31", "32", "synchronous", "asynchronous", "long", "a successor's", "unnamed"}
    gone = {"vanished", "vanished definition", "vanished asynchronous"}
    assert {name for name, number in kinds.items() if number >= 20} >= rows | gone, kinds


def test_spools_of_what_is_rolled_back_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.stream.transactions.transaction_buffer.SPOOL_BYTES", 500)
    master = SynchronousMaster()
    LimboWorkload(master, random.Random(1), 1)
    replica = WatchedReplica(master, images=True, transaction_bytes_max=500)
    replica.connect()
    for number in range(20):
        master.replace(SHARED, 100 + number % 5, "x" * 100, number)
    replica.relay.relay()
    replica.receive()
    assert len(replica.spools) > 2, "two kilobytes wait where 500 bytes may be kept"
    assert not streamed(replica.seen())
    master.roll_back(master.waiting[0].lsn, 1)
    replica.relay.relay()
    replica.receive()
    assert all(spool.is_closed for spool in replica.spools)
    assert not streamed(replica.seen())
