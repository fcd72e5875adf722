"""Whose a prefix is, and whether somebody is at work: the decisions, without a clock or a broker.

A prefix has one owner. Events don't say which daemon made them, so two that publish to the same topics would mix everything
twice, and nobody could tell. Who comes first claims it, and claims are kept in the order in which they were made, so that of
two who claim it in the same instant both see who was first.

A name is at work in one process. Taking it in Kafka fences whoever has it, so that is done only when nobody is at work:

    the last process that wrote the checkpoint
    ├─ ended in order, and said so                          gone
    ├─ held the lock of the state directory that we hold    gone
    └─ else: listen to the checkpoint topic for SILENCE_SECONDS
          ├─ nothing                                        gone: killed elsewhere, frozen, or cut off from Kafka
          └─ records that come at two moments               at work

One moment isn't enough: what a process had sent before it was killed may arrive after that. Moments are those of this process's
own clock, which never goes back: that of another host may be set back, or stand.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from cdc.errors import ConfigurationError, PublishError
from cdc.stream.checkpoint import Checkpoint, owner_record

SIGN_SECONDS: Final = 2.0
"""How often a daemon gives a sign of life."""
SILENCE_SECONDS: Final = 8.0
"""After so much silence of a Kafka that answers, a daemon is taken for gone. Should it be frozen, and wake up, it is fenced."""
APART_SECONDS: Final = 1.5
"""The signs of a process that is alive come further apart than that; what one had sent before it was killed comes closer."""


class NameTakenError(PublishError):
    """Another daemon of this name is at work."""


class PrefixTakenError(ConfigurationError):
    """The topics belong to another daemon."""


def owner(stored: Checkpoint) -> str | None:
    """Who owns the prefix; None if nobody does.

    Where an older version has written, nobody has claimed it: then it is whoever published there last.
    """
    if stored.owners:
        return next(iter(stored.owners))
    return max(stored.published, key=lambda name: stored.published[name], default=None)


def check(stored: Checkpoint, prefix: str, name: str) -> None:
    """Raises PrefixTakenError if the prefix is another daemon's than `name`."""
    by = owner(stored)
    if by is None or by == name:
        return
    sign = stored.signs.get(by)
    moments = (stored.published.get(by), stored.owners.get(by), sign.ts_ms if sign is not None else None)
    latest = max((moment for moment in moments if moment is not None), default=0)
    raise PrefixTakenError(
        f"kafka.topic_prefix {prefix!r} belongs to the daemon {by!r}, which wrote there last at "
        f"{datetime.fromtimestamp(latest / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC: with {name!r} beside it consumers would have every "
        "row twice, and couldn't tell whose is whose",
        f"Give {name!r} a kafka.topic_prefix of its own. If {by!r} is gone for good, or was renamed, start once with "
        "--take-prefix.",
    )


def claims(stored: Checkpoint, name: str, now_ms: int, *, takes: bool = False) -> list[tuple[bytes, bytes | None]]:
    """Records that make `name` the owner; none if it is. With `takes` the others' claims end."""
    others = [other for other in stored.owners if other != name] if takes else []
    if name in stored.owners and not others:
        return []
    return [*(owner_record(other, None) for other in others), owner_record(name, now_ms)]


def taken(stored: Checkpoint, name: str) -> str:
    """What to say to a daemon when another process has written the checkpoint: who did, if it has told already."""
    sign = stored.signs.get(name)
    who = f", process {sign.process_id} on {sign.host}," if sign is not None and sign.writer == stored.writer else ""
    return f"another daemon{who} has taken the name {name!r}: this one ends, and nothing is lost"


def is_known_gone(stored: Checkpoint, name: str, ours: Collection[str]) -> bool:
    """Whether no process of this name can be at work, without listening.

    `ours` are processes that have held the lock that this one holds now.
    """
    sign = stored.signs.get(name)
    if stored.writer is None:
        return sign is None
    return stored.writer in ours or (sign is not None and sign.is_last and sign.writer == stored.writer)


class Listening:
    """What has been heard of one daemon, and what follows from it.

    Times are those of one clock that never goes back, in seconds.
    """

    def __init__(self, started: float) -> None:
        self._quiet_since = started
        self._first_heard: float | None = None
        self.is_at_work = False

    def heard(self, now: float) -> None:
        """A record of the daemon's has come."""
        self._quiet_since = now
        if self._first_heard is None:
            self._first_heard = now
        self.is_at_work = self.is_at_work or now - self._first_heard >= APART_SECONDS

    def deaf(self, now: float) -> None:
        """Kafka doesn't answer: silence means nothing, and what comes afterwards may have been sent long before."""
        self._quiet_since = now
        self._first_heard = None

    def is_gone(self, now: float) -> bool:
        """Whether the silence has been long enough."""
        return not self.is_at_work and now - self._quiet_since >= SILENCE_SECONDS
