"""The one order of the events of all shards: each handoff has its former side before it."""

from __future__ import annotations

import random

from spark_jobs.lake.fleet_order import Handoff, Stretch, stretches
from spark_jobs.lake.fleet_plan import Emptied, divided


def any_seq(_: str, seq: int) -> int:
    """Each event is a source transaction."""
    return seq


def test_without_handoffs_each_shard_goes_to_its_goal_at_once() -> None:
    assert stretches({"s1": 2, "s2": 0}, {"s1": 5, "s2": 0}, [], any_seq) == [Stretch("s1", 2, 5)]


def test_the_next_owner_waits_for_the_former_one_and_nothing_else_does() -> None:
    there_and_back = [Handoff("s1", 4, "s2", 3), Handoff("s2", 2, "s1", 3)]
    goals = {"s1": 9, "s2": 9}
    assert stretches({"s1": 0, "s2": 0}, goals, there_and_back, any_seq) == [
        Stretch("s1", 0, 3),
        Stretch("s2", 0, 9),
        Stretch("s1", 3, 9),
    ]
    # The former side isn't complete yet: only what comes from the handoff on stays behind.
    assert stretches({"s1": 0, "s2": 0}, {"s1": 2, "s2": 9}, there_and_back, any_seq) == [
        Stretch("s1", 0, 2),
        Stretch("s2", 0, 1),
    ]
    # It is done since an earlier batch.
    assert stretches({"s1": 3, "s2": 1}, {"s1": 3, "s2": 9}, there_and_back, any_seq) == [Stretch("s2", 1, 9)]


def test_transactions_stay_whole_unless_two_wait_for_each_other() -> None:
    def ends(_: str, seq: int) -> int:
        return seq // 5 * 5

    goals = {"s1": 10, "s2": 10}
    assert stretches({"s1": 0, "s2": 0}, goals, [Handoff("s1", 8, "s2", 10)], ends) == [
        Stretch("s1", 0, 5),
        Stretch("s2", 0, 10),
        Stretch("s1", 5, 10),
    ]
    crossed = [Handoff("s1", 3, "s2", 2), Handoff("s2", 5, "s1", 4)]
    assert stretches({"s1": 0, "s2": 0}, goals, crossed, ends) == [
        Stretch("s1", 0, 2),
        Stretch("s2", 0, 4),
        Stretch("s1", 2, 10),
        Stretch("s2", 4, 10),
    ]


def test_any_history_has_an_order_that_keeps_shards_and_keys() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        seqs, handoffs, moment = {"a": 0, "b": 0, "c": 0}, [], {}
        last: dict[int, tuple[str, int]] = {}
        for time in range(200):
            shard, key = chance.choice(sorted(seqs)), chance.randrange(8)
            seqs[shard] += 1
            moment[shard, seqs[shard]] = time, key
            if key in last and last[key][0] != shard:
                handoffs.append(Handoff(shard, seqs[shard], *last[key]))
            last[key] = shard, seqs[shard]
        done = dict.fromkeys(seqs, 0)
        order: list[tuple[str, int]] = []
        while done != seqs:
            goals = {shard: min(seq, done[shard] + chance.randrange(60)) for shard, seq in seqs.items()}
            for shard, after, up_to in stretches(done, goals, handoffs, any_seq):
                assert (done[shard], up_to > after) == (after, True)
                order += [(shard, seq) for seq in range(after + 1, up_to + 1)]
                done[shard] = up_to
        assert len(order) == sum(seqs.values())
        for key in range(8):
            times = [moment[event][0] for event in order if moment[event][1] == key]
            assert times == sorted(times)


def test_rows_are_removed_in_the_place_of_a_truncation_and_behind_a_snapshot() -> None:
    truncation = Emptied("s1", "users", 4, 4, is_sweep=False)
    sweep, earlier = (Emptied("s1", "users", at, 2, is_sweep=True, ts_ms=1) for at in (6, 1))
    assert list(divided([Stretch("s1", 1, 6), Stretch("s2", 0, 9)], [sweep, truncation, earlier], {"s1": 1})) == [
        earlier,
        Stretch("s1", 1, 3),
        truncation,
        Stretch("s1", 4, 6),
        sweep,
        Stretch("s2", 0, 9),
    ]
