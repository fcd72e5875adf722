"""Topics that were deleted: what makes up for that, and that nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdc.errors import ConfigurationError
from cdc.stream.batches.covered import Covered
from cdc.stream.commits.checkpoint import Checkpoint, fold, loss_record
from cdc.stream.commits.losses import LostTopic, after_all, sentence_of, snapshot_remedy

USERS = LostTopic("shop.users", ("users",), seq=10, noticed_ts_ms=1_700_000_000_000)
SHARED = LostTopic("shop.people", ("guests", "users"), seq=10, noticed_ts_ms=1_700_000_000_000)


@pytest.mark.parametrize(
    ("covered", "is_over"),
    [
        (Covered("shop.users", "users", 10), True),
        (Covered("shop.users", "users", 9), False),  # its first rows may have been in the topic that is gone
        (Covered("shop.users", "guests", 10), False),
        (Covered("shop.orders", "users", 10), False),
        (Covered("shop.users"), True),
        (Covered("shop.orders"), False),
    ],
)
def test_what_ends_a_loss(covered: Covered, *, is_over: bool) -> None:
    assert (USERS.after(covered) is None) is is_over


def test_a_topic_of_several_spaces_needs_all_of_them() -> None:
    changed = after_all({"shop.people": SHARED}, [Covered("shop.people", "users", 10)])
    rest = changed["shop.people"]
    assert rest is not None
    assert rest.left == ["guests"]
    assert after_all({"shop.people": rest}, [Covered("shop.people", "guests", 12)]) == {"shop.people": None}
    both = [Covered("shop.people", name, 10) for name in ("guests", "users")]
    assert after_all({"shop.people": SHARED}, both) == {"shop.people": None}
    assert after_all({"shop.people": SHARED}, [Covered("shop.people", "users", 9)]) == {}


def test_a_topic_of_unknown_spaces_is_over_with_the_first_one() -> None:
    assert LostTopic("shop.users", (), 10, 0).after(Covered("shop.users", "users", 10)) is None


def test_the_checkpoint_topic_keeps_it() -> None:
    stored = Checkpoint()
    for loss in (USERS, SHARED.after(Covered("shop.people", "users", 10))):
        assert loss is not None
        fold("any daemon", *loss_record(loss.topic, loss), stored)
        assert stored.losses[loss.topic] == loss
    fold("any daemon", *loss_record("shop.users", None), stored)
    assert list(stored.losses) == ["shop.people"]
    assert stored.position is None
    with pytest.raises(ConfigurationError, match="isn't a checkpoint's"):
        fold("x", loss_record("shop.users", USERS)[0], json.dumps({"lost_topic": "shop.users"}).encode(), stored)


def test_operators_read_what_is_lost_and_what_to_do() -> None:
    assert USERS.sentence == (
        "the topic shop.users was deleted (noticed at 2023-11-14T22:13:20+00:00): consumers that hadn't read all of it lack "
        "changes of users, and new ones lack rows"
    )
    assert "snapshot --config FILE users`" in USERS.remedy
    assert "--acknowledge shop.users`" in USERS.remedy
    assert sentence_of([]) is None
    assert (sentence_of([USERS, SHARED]) or "").endswith("; so was 1 other topic")
    assert (sentence_of([USERS] * 3) or "").endswith("; so were 2 other topics")


def test_the_commands_about_a_fleets_topic_name_the_shard() -> None:
    """They are refused without one. Each shard's daemon has rows of its own in a shared topic, and a loss to be acknowledged."""
    alone = replace(USERS, shards=("s1",))
    assert "`tarantool-cdc snapshot --config FILE --shard s1 users` publishes the rows again" in alone.remedy
    assert alone.remedy.endswith("`tarantool-cdc topics --config FILE --shard s1 --acknowledge shop.users`.")
    shared = replace(USERS, shards=("s1", "s2", "s3"))
    others = "(and the same for each other shard: s2, s3)"
    assert f"`tarantool-cdc snapshot --config FILE --shard s1 users` {others} publishes the rows again" in shared.remedy
    assert shared.remedy.endswith(f"--shard s1 --acknowledge shop.users` {others}.")
    assert snapshot_remedy(["us ers"], ("s1",)) == (
        "`tarantool-cdc snapshot --config FILE --shard s1 'us ers'` sends its rows again"
    )
    assert "shards" not in shared.to_json()
    assert shared == USERS
