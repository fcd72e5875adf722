"""Daemons of a fleet over random clusters, read at different speeds and killed anywhere: what consumers see of each key is what
users have done, once and in order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.fakes.moving import SPACES, Cluster, Daemon, UserChange, kept, meet
from tests.fakes.sharded import EMPTIED, NAMES, ShardedCluster

SHORT_LIVES = 6


class Fleet:
    """A cluster and a daemon for each shard."""

    def __init__(
        self, seed: int, *, changes_buckets: bool = True, are_late: bool = False, batch_bytes_max: int = 1 << 20, **servers: bool
    ) -> None:
        """If daemons `are_late`, they begin one after the other while buckets move. For the rest see ShardedCluster."""
        self.chance = random.Random(seed)
        self.servers = ShardedCluster(self.chance, changes_buckets=changes_buckets, **servers)
        self.kafka = Cluster(NAMES)
        self.daemons: list[Daemon] = []
        for name in self.chance.sample(NAMES, len(NAMES)):
            if are_late:
                self.move_on(self.chance.randrange(60))
            log = self.servers.shards[name].log()
            self.daemons.append(Daemon(self.kafka, name, log, batch_bytes_max=batch_bytes_max))
        if not are_late:
            meet(self.daemons)
        self.first = {key: len(changes) for key, changes in self.servers.changes.items()}

    def move_on(self, steps: int) -> None:
        """The cluster and the daemons that are there go on."""
        for _ in range(steps):
            self.servers.step(truncates=False)
            if self.daemons:
                daemon = self.chance.choice(self.daemons)
                self.feed(daemon)
                daemon.read(5)
                daemon.hear()
                daemon.commit()

    def work(self, steps: int, crashes: float, *, truncates: bool = True) -> None:
        """The cluster and the daemons go on, each now and then."""
        chance, speeds = self.chance, [self.chance.choice((1, 1, 4, 12)) for _ in self.daemons]
        for _ in range(steps):
            self.servers.step(truncates=truncates)
            (daemon,) = chance.choices(self.daemons, speeds)
            self.feed(daemon)
            daemon.read(chance.choice((1, 3, 20)))
            if chance.random() < 0.6:
                daemon.hear()
            if chance.random() < 0.2:
                daemon.answer()
            if chance.random() < 0.6:
                daemon.commit(chance.choice((1, 2, None)))
            if chance.random() < 0.3:
                daemon.flush()
            if chance.random() < crashes:
                daemon.start()

    def drop(self) -> None:
        """One of the spaces is dropped, one shard after another."""
        for name in self.chance.sample(NAMES, len(NAMES)):
            self.servers.drop(self.servers.shards[name])
            self.work(self.chance.randrange(30), 0)

    def feed(self, daemon: Daemon) -> None:
        """Its master's log is there to be read."""
        daemon.stream += self.servers.shards[daemon.name].news()

    def come_to_rest(self) -> None:
        """The moves end, and each daemon reads everything."""
        self.servers.end_moves()
        for daemon in self.daemons:
            self.feed(daemon)
            daemon.read(100_000)
            daemon.commit()
        for _ in range(24):
            for daemon in self.daemons:
                daemon.hear()
                daemon.answer()
                daemon.commit()

    def check_end(self) -> None:
        """Hold that nothing waits, and that consumers have the cluster's rows."""
        assert [daemon.waits for daemon in self.daemons] == [{}, {}, {}]
        rows = sorted(([*row] for row in self.servers.rows.values()), key=repr)
        assert kept(self.daemons) == rows
        last = {(event["after"] or event["before"])["id"]: event for event in self.kafka.events if event["op"] != "t"}
        wrong = {key: (row, shown(last[key])) for key, row in self.servers.rows.items() if shown(last[key])[2] != row}
        assert not wrong
        self.check_gone()
        for daemon in self.daemons:
            self.check_transactions(daemon.name)
            self.check_snapshots(daemon.name)

    def check_gone(self) -> None:
        """Hold that consumers have no rows that are gone, a `t` of any shard aside."""
        there: set[int] = set()
        for event in self.kafka.events:
            if event["op"] == "t":
                there.clear()
            elif event["after"] is not None:
                there.add(event["after"]["id"])
            else:
                there.discard(event["before"]["id"])
        assert there <= self.servers.rows.keys()

    def check_transactions(self, shard: str) -> None:
        """Hold that each event of a transaction has a place of its own, and that its ENDs, one for each part, count them all."""
        places: dict[str, list[int]] = defaultdict(list)
        seen: Counter[tuple[str, str]] = Counter()
        counted: Counter[tuple[str, str]] = Counter()
        for event in self.kafka.events:
            if event["source"]["shard"] == shard and event["transaction"] is not None:
                places[event["transaction"]["id"]].append(event["transaction"]["total_order"])
                seen[event["transaction"]["id"], event["source"]["table"]] += 1
        for record in self.kafka.transactions[shard]:
            for one in record["data_collections"] or ():
                if one["data_collection"] in SPACES:
                    counted[record["id"], one["data_collection"]] += one["event_count"]
        assert not {told: found for told, found in places.items() if len(set(found)) < len(found)}
        # A transaction with one event has no records. (Some have others in `_bucket`.)
        wanted = {place: count for place, count in seen.items() if len(places[place[0]]) > 1 or place in counted}
        assert counted == wanted

    def check_snapshots(self, shard: str) -> None:
        """Hold that rows that were shown again have a snapshot's number of their own, which is complete, and counts them."""
        events = [event for event in self.kafka.events if event["source"]["shard"] == shard]
        seen = Counter((event["source"].get("snapshot_id"), event["source"]["table"]) for event in events if event["op"] == "r")
        told = [record for record in self.kafka.snapshots[shard] if record["status"] == "COMPLETED"]
        counted = Counter(
            {
                (record["snapshot_id"], one["space"]): one["rows"]
                for record in told
                for one in record["spaces"]
                if one["space"] in SPACES and one["rows"]
            }
        )
        assert seen == counted
        assert len(told) == len({record["snapshot_id"] for record in told})

    def check(self) -> None:
        """Hold that consumers have seen what users did."""
        self.check_end()
        of_key: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        emptied = [place for place, event in enumerate(self.kafka.events) if event["op"] == "t"]
        for place, event in enumerate(self.kafka.events):
            if event["op"] != "t":
                row = event["after"] or event["before"]
                former = of_key[row["id"]][-1][1] if of_key[row["id"]] else event
                # Between two shards' DROPs, buckets arrive with fewer rows than they had, and are shown again. So are some whose
                # rows a TRUNCATE has met in the copy that they had left.
                is_again = event["op"] == "r" and former["after"] == event["after"] and former is not event
                if not (is_again and (self.servers.dropped or emptied)):
                    of_key[row["id"]].append((place, event))
        assert of_key.keys() <= self.servers.changes.keys()
        for key, changes in self.servers.changes.items():
            if key in self.servers.dropped:
                continue
            first = self.first.get(key, 0)
            before = changes[first - 1][2] if first else None
            wanted = [*([("c", None, before)] if before is not None else []), *changes[first:]]
            compare(key, of_key[key], wanted, emptied)
        for daemon in self.daemons:
            own = [event["source"]["seq"] for event in self.kafka.events if event["source"]["shard"] == daemon.name]
            assert own == sorted(set(own))


def compare(key: int, seen: list[tuple[int, dict[str, Any]]], wanted: list[UserChange], emptied: list[int]) -> None:
    """Hold that a key's events are these changes. In the place of one by a TRUNCATE, there is a `d`, or a `t` of all keys."""
    told = f"key {key}\nseen   {[(place, *shown(event)) for place, event in seen]}\nwanted {wanted}\nt {emptied}"
    rest, last = list(seen), -1
    for operation, before, after in wanted:
        place, event = rest[0] if rest else (1 << 60, {"op": "", "before": None, "after": None})
        if operation == EMPTIED and shown(event) != ("d", before, after):
            assert any(last < at < place for at in emptied), told
            continue
        assert shown(event) == ("d" if operation == EMPTIED else operation, before, after), told
        last = place
        del rest[0]
    assert not rest, told


def shown(event: dict[str, Any]) -> UserChange:
    """An event as a user's change. A row of a snapshot counts as new."""
    before, after = (list(row.values()) if row is not None else None for row in (event["before"], event["after"]))
    return "c" if event["op"] == "r" else event["op"], before, after


@pytest.mark.parametrize(("lives", "crashes"), [(8, 0), (12, 0.05), pytest.param(1000, 0.05, marks=pytest.mark.soak)])
def test_users_changes_once_and_in_order(seed: int, lives: int, crashes: float) -> None:
    for life in range(lives):
        told = seed + life
        print("seed", told)
        # Batches that are full after each row can end between any two that have waited.
        fleet = Fleet(told, is_old=life % 4 == 0, by_name=life % 8 < 2, batch_bytes_max=1 if life % 3 == 1 else 1 << 20)
        fleet.work(200, crashes)
        if life % 3 == 0:
            fleet.drop()
        fleet.come_to_rest()
        fleet.check()


@pytest.mark.parametrize("lives", [SHORT_LIVES, pytest.param(500, marks=pytest.mark.soak)])
def test_daemons_that_begin_while_buckets_move(seed: int, lives: int) -> None:
    """Their snapshots are of different moments, so history has gaps; consumers end with the cluster's rows."""
    for life in range(lives):
        told = seed + life
        print("seed", told)
        fleet = Fleet(told, is_old=life % 3 == 0, are_late=True)
        # What went wrong at the beginning is seen best where users haven't changed it since.
        fleet.work(*((200, 0.05) if life % 2 else (20, 0.0)), truncates=life % 4 == 1)
        fleet.come_to_rest()
        fleet.check_end()


@pytest.mark.parametrize("lives", [SHORT_LIVES, pytest.param(500, marks=pytest.mark.soak)])
def test_values_that_servers_change_on_the_way(seed: int, lives: int) -> None:
    """Consumers end with what the bucket's owner has, and over all lives some of it was shown again."""
    converted = changed = 0
    for life in range(lives):
        told = seed + life
        print("seed", told)
        fleet = Fleet(told, converts=True)
        fleet.work(200, 0.05, truncates=False)
        fleet.come_to_rest()
        fleet.check_end()
        converted += fleet.servers.converted_count
        changed += sum(daemon.moves.queues.changed_count for daemon in fleet.daemons)
    assert changed or not converted


def test_a_daemon_ends_between_rows_that_wait_for_an_arrival() -> None:
    """A seed in which the next start counted the arrival twice, and waited for another move, for good."""
    fleet = Fleet(38300064, is_old=True, by_name=True, batch_bytes_max=1)
    fleet.work(200, 0.15)
    fleet.come_to_rest()
    fleet.check()


@pytest.mark.parametrize(("seed", "steps", "crashes"), [(38800217, 200, 0.25), (38800194, 300, 0.1)])
def test_a_row_that_waits_at_the_checkpoint_is_read_again(seed: int, steps: int, crashes: float) -> None:
    """Seeds in which a change was lost: its bucket was active, so that it didn't wait in the catch-up up to the checkpoint."""
    fleet = Fleet(seed, changes_buckets=seed == 38800194, batch_bytes_max=500)
    fleet.work(steps, crashes)
    fleet.come_to_rest()
    fleet.check()


def test_a_daemon_ends_while_the_rows_of_a_bucket_are_taken_away() -> None:
    """A seed in which they were taken away twice: a batch ended before the bucket's state went on."""
    fleet = Fleet(38600011, are_late=True, batch_bytes_max=1)
    fleet.work(150, 0.25, truncates=False)
    fleet.come_to_rest()
    fleet.check_end()
    gone: set[int] = set()
    for event in fleet.kafka.events:
        key = (event["after"] or event["before"])["id"]
        assert event["op"] != "d" or key not in gone
        (gone.add if event["op"] == "d" else gone.discard)(key)


@pytest.mark.parametrize("seed", [3, 11, 13, 15])
def test_a_shard_is_emptied_while_changes_wait_of_buckets_that_have_gone_on(seed: int) -> None:
    """Seeds in which a user's change was lost."""
    fleet = Fleet(seed, changes_buckets=False)
    fleet.work(250, 0)
    fleet.come_to_rest()
    fleet.check()
