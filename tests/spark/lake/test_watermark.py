"""The watermark: up to which seq every event has been appended, computed from bits."""

from __future__ import annotations

import random

import pytest

from spark_jobs.lake.watermark import EventsAfterMark, Seqs, advance, covers, ends_without_records, last_end, seq_before, seqs

BUCKET = 32768


def found(after: int, present: dict[int, str]) -> Seqs:
    """Events by their seq: "b" begins a transaction, "s" is a snapshot's, anything else goes on."""

    def bits(kinds: str) -> int:
        return sum(1 << (seq - after - 1) for seq, kind in present.items() if kind in kinds)

    return Seqs(after, bits("bs-"), bits("bs"), bits("s"))


def whole(kinds: str, after: int = 0) -> dict[int, str]:
    return dict(enumerate(kinds, after + 1))


@pytest.mark.parametrize(
    ("kinds", "is_all", "mark"),
    [
        ("", True, 0),
        ("b", False, 0),  # its transaction may go on
        ("b", True, 1),
        ("bb", False, 1),
        ("b--b-", False, 3),
        ("b--b-", True, 5),
        ("b.b", False, 0),  # 2 is missing
        ("b-.b", False, 0),
    ],
)
def test_the_watermark_is_the_end_of_a_transaction_before_the_first_gap(kinds: str, is_all: bool, mark: int) -> None:
    present = {seq: kind for seq, kind in whole(kinds).items() if kind != "."}
    known = max(present, default=0) if is_all else -1
    assert advance(found(0, present), [], known, is_all=is_all) == mark


def test_where_everything_has_been_read_gaps_are_none() -> None:
    present = {5: "-", 9: "b", 12: "b", 13: "-"}
    assert advance(found(0, present), [], -1, is_all=False) == 0
    assert advance(found(0, present), [], 12, is_all=False) == 11
    assert advance(found(0, present), [], 13, is_all=True) == 13
    # The last ones are of topics that aren't read, and so are a snapshot's.
    assert advance(found(0, present), [], 20, is_all=True) == 20
    assert advance(found(0, {5: "s", 7: "s"}), [20], 20, is_all=True) == 20
    # From there on it goes by itself.
    assert advance(found(13, {14: "b", 15: "b"}), [], -1, is_all=False) == 14


def test_what_is_missing_before_a_stream_that_begins_late_takes_no_room() -> None:
    late = 1 << 50
    assert advance(found(0, {}), [], late, is_all=True) == late
    bucket = late // BUCKET + 1
    assert [seq_before(buckets) for buckets in ([], [1, 2], [bucket + 1, bucket])] == [0, 0, late]


def test_a_snapshot_is_one_unit() -> None:
    present = whole("b-sss")
    assert advance(found(0, present), [], 5, is_all=True) == 2
    assert advance(found(0, present), [5], 5, is_all=True) == 5
    # One that was interrupted, and the one after it, with a transaction between their rows.
    present = whole("bssb-ssb")
    assert advance(found(0, present), [], 8, is_all=True) == 1
    assert advance(found(0, present), [7], 8, is_all=True) == 8
    assert advance(found(0, present), [7], -1, is_all=False) == 7
    assert advance(found(3, whole("b-ssb", 3)), [3], -1, is_all=False) == 5


@pytest.mark.parametrize(
    ("kinds", "completed", "started", "known", "ends"),
    [
        ("sssb", [], [], 4, [3]),  # its records are lost, and the stream goes on
        ("sssb", [], [0], 4, []),  # it has begun, and will end
        ("sssb", [3], [], 4, []),
        ("sss", [], [], 3, []),  # more rows may come
        ("sssb", [], [], 3, []),  # it isn't known what precedes the stream's event
        ("sssb", [], [], -1, []),
        ("bssb-ssb", [], [], 8, [3, 7]),
        ("bssb-ssb", [3], [], 8, [7]),
        ("bssb-ssb", [3], [5], 8, []),
        ("bssb-ssb", [], [5], 8, [3]),
        ("bbssb", [], [0], 5, []),  # a request that began before the first two events, and may go on
    ],
)
def test_a_snapshot_whose_records_are_lost_ends_where_the_stream_goes_on(
    kinds: str, completed: list[int], started: list[int], known: int, ends: list[int]
) -> None:
    for after in (0, 10):
        moved = [[seq + after for seq in numbers] for numbers in (completed, started, ends)]
        present = found(after, whole(kinds, after))
        assert ends_without_records(present, moved[0], moved[1], known + after if known >= 0 else -1) == moved[2]


def test_the_last_end_before_a_change_of_name_is_that_of_a_transaction_or_snapshot() -> None:
    present = found(10, whole("b-b--b", 10))  # transactions end at 12, 15 and 16 or later
    assert [last_end(present, [], seq) for seq in range(10, 17)] == [10, 10, 12, 12, 12, 15, 15]
    # The change came after the snapshot's first row: what precedes the snapshot is shown, or the whole of it.
    present = found(0, whole("b-sssb"))
    assert [last_end(present, [5], seq) for seq in range(1, 7)] == [0, 2, 2, 2, 5, 5]


@pytest.mark.parametrize("seed", range(20))
def test_it_never_goes_back_nor_past_what_is_complete(seed: int) -> None:
    chance = random.Random(seed)
    kinds = "".join("b" + "-" * chance.randrange(4) for _ in range(30))
    ends = {seq for seq in range(1, len(kinds) + 1) if seq == len(kinds) or kinds[seq] == "b"} | {0}
    left, present, mark = list(range(1, len(kinds) + 1)), dict[int, str](), 0
    chance.shuffle(left)
    while left:
        for _ in range(min(len(left), chance.randrange(1, 12))):
            seq = left.pop()
            present[seq] = kinds[seq - 1]
        behind = {seq: kind for seq, kind in present.items() if seq > mark}
        last = max(present)
        new = advance(found(mark, behind), [], last if not left else -1, is_all=not left)
        assert new >= mark
        assert new in ends
        assert all(seq in present for seq in range(1, new + 1))
        mark = new
    assert mark == len(kinds)


def test_bitmaps_of_buckets_become_bits_behind_a_seq() -> None:
    buckets = {3: (0b100001, 0b1, 0b100000), 1: (1 << BUCKET - 1, 1 << BUCKET - 1, 0)}
    read = seqs(BUCKET - 3, buckets)
    assert read == Seqs(
        BUCKET - 3, 0b100 | (1 << (BUCKET + 3)) | (1 << (BUCKET + 8)), 0b100 | (1 << (BUCKET + 3)), 1 << (BUCKET + 8)
    )
    assert read.last == 2 * BUCKET + 6
    assert seqs(2 * BUCKET + 3, {3: buckets[3]}) == Seqs(2 * BUCKET + 3, 0b100, 0, 0b100)


def test_what_is_behind_is_gathered_from_batches_and_counted_when_it_is_passed() -> None:
    def bitmap(*seqs: int) -> bytes:
        return sum(1 << (seq - 1) % BUCKET for seq in seqs).to_bytes(BUCKET // 8, "little")

    behind = EventsAfterMark()
    behind.add("users", 1, bitmap(3, 5), bitmap(3), bitmap())
    behind.add("orders", 1, bitmap(4), bitmap(4), bitmap(4))
    behind.add("users", 1, bitmap(5, 6), bitmap(6), bitmap())
    behind.add("users", 2, bitmap(BUCKET + 1), bitmap(), bitmap())
    assert behind.seqs(2) == Seqs(2, 0b1111 | 1 << (BUCKET - 2), 0b1011, 0b10)
    assert behind.count_and_drop(2, 5) == {"users": 2, "orders": 1}
    assert behind.count_and_drop(5, 5) == {}
    assert behind.seqs(5) == Seqs(5, 0b1 | 1 << (BUCKET - 5), 0b1, 0)
    assert behind.count_and_drop(5, BUCKET + 1) == {"users": 2}
    behind.add("users", 9, bitmap(8 * BUCKET + 1), bitmap(8 * BUCKET + 1), bitmap())
    assert behind.seqs(BUCKET + 1).last == 8 * BUCKET + 1


def test_partitions_that_hold_nothing_need_not_be_read() -> None:
    ends = {("a", 0): 3, ("a", 1): 0}
    assert covers({("a", 0): 3}, ends)
    assert covers({("a", 0): 4, ("b", 0): 1}, ends)
    assert not covers({("a", 0): 2}, ends)
    assert not covers({}, ends)


def test_one_event_with_a_far_seq_takes_no_room() -> None:
    far = 10**15
    behind = EventsAfterMark()
    for seq in (1, 3, far, far + 1):
        bits = (1 << (seq - 1) % BUCKET).to_bytes(BUCKET // 8, "little")
        behind.add("users", (seq - 1) // BUCKET + 1, bits, bits, bytes(BUCKET // 8))
    read = behind.seqs(0)
    assert read.present.bit_length() <= 4 * BUCKET
    assert read.last == far + 1
    assert advance(read, [], -1, is_all=False) == 0
    assert advance(read, [], far, is_all=False) == far
    assert advance(read, [], far + 1, is_all=True) == far + 1


@pytest.mark.parametrize("seed", range(10))
def test_long_distances_that_are_left_out_change_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    after, seq = chance.randrange(3 * BUCKET), 0
    buckets: dict[int, tuple[int, int, int]] = {}
    places = []
    seq = after
    for _ in range(12):
        seq += chance.choice([1, 1, 2, BUCKET - 1, BUCKET, 11 * BUCKET, chance.randrange(1, 30 * BUCKET)])
        places.append(seq)
        bit = 1 << (seq - 1) % BUCKET
        known = buckets.get((seq - 1) // BUCKET + 1, (0, 0, 0))
        kinds = (True, chance.random() < 0.6, chance.random() < 0.2)
        buckets[(seq - 1) // BUCKET + 1] = tuple(old | bit * kind for old, kind in zip(known, kinds, strict=True))  # type: ignore[assignment]
    short = seqs(after, buckets)
    monkeypatch.setattr("spark_jobs.lake.watermark._EMPTY_MAX", 10**9)
    long = seqs(after, buckets)
    assert not long.left_out
    assert short.last == long.last == places[-1]
    for up_to in (-1, *places):
        for completed in ([], [chance.choice(places)], places):
            # Only what lies at or behind an event is ever complete, and a snapshot ends behind one.
            for is_all in (False, up_to == places[-1]):
                assert advance(short, completed, up_to, is_all=is_all) == advance(long, completed, up_to, is_all=is_all)
            if up_to > after:
                assert last_end(short, completed, up_to) == last_end(long, completed, up_to)
