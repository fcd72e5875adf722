"""Decides who owns a prefix, and whether another process is running. The module uses neither a clock nor a broker itself.

A prefix has one owner. Events don't say which daemon made them: if two daemons published to the same topics, every row would be
there twice, and nobody could tell the two apart. The first daemon claims the prefix. Claims are kept in the order in which they
were made, so if two daemons claim the prefix at the same instant, both see which one was first.

A daemon's name is in use by one process. Taking the name in Kafka fences the process that has it, so a daemon takes it only when
no process is running under it:

    the last process that wrote the checkpoint
    ├─ ended in order, and recorded that                    gone
    ├─ held the lock of the state directory that we hold    gone
    └─ else: listen to the checkpoint topic for SILENCE_SECONDS
          ├─ nothing                                        gone: killed elsewhere, frozen, or cut off from Kafka
          └─ records at two moments                         running

One moment isn't enough: records that a process sent before it was killed may arrive later. Moments are read from this process's
own monotonic clock: another host's clock may be set back, or stand.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from cdc.errors import ConfigurationError, PublishError
from cdc.stream.commits.checkpoint import Checkpoint, owner_record

SIGN_SECONDS: Final = 0.5
"""Interval between two signs of life of a daemon, in seconds."""
SILENCE_SECONDS: Final = 8.0
"""Silence, in seconds, after which a daemon counts as gone, while Kafka answers. If it was only frozen, it is fenced once it
wakes up."""
APART_SECONDS: Final = 1.5
"""Minimum time, in seconds, between two signs of a running process.

Signs sent before a process was killed arrive closer together.
"""


def transactional_id(name: str, prefix: str) -> str:
    """Return the id under which Kafka fences: only a daemon with the same name and the same prefix has it.

    It is the name alone where the prefix is the same. No prefix contains a slash, so no two pairs have the same id.
    """
    return name if name == prefix else f"{prefix}/{name}"


def former_id(stored: Checkpoint, name: str, prefix: str) -> str | None:
    """Return the id of the process that wrote the checkpoint, if that was an older version, whose id was the name alone."""
    is_former = stored.writer is not None and stored.transactional_id is None
    return name if is_former and name != transactional_id(name, prefix) else None


_FLEET: Final = "fleet "


class NameTakenError(PublishError):
    """Another daemon of this name is running."""


class PrefixTakenError(ConfigurationError):
    """The topics belong to another daemon."""


def owner(stored: Checkpoint) -> str | None:
    """Return the owner of the prefix, or None.

    Older versions made no claims: then the owner is the daemon that published there last.
    """
    if stored.owners:
        return next(iter(stored.owners))
    return max(stored.published, key=lambda name: stored.published[name], default=None)


def check(stored: Checkpoint, prefix: str, name: str) -> None:
    """Raise PrefixTakenError if another daemon than `name` owns the prefix."""
    by = owner(stored)
    if by is None or by == name:
        return
    sign = stored.signs.get(by)
    moments = (stored.published.get(by), stored.owners.get(by), sign.ts_ms if sign is not None else None)
    latest = max((moment for moment in moments if moment is not None), default=0)
    raise PrefixTakenError(
        f"kafka.topic_prefix {prefix!r} belongs to {_shown(by)}, which wrote there last at "
        f"{datetime.fromtimestamp(latest / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC: with {name!r} beside it consumers would have every "
        "row twice, and couldn't tell whose is whose",
        f"Give {name!r} a kafka.topic_prefix of its own. If {by!r} is gone for good, or was renamed, start once with "
        "--take-prefix.",
    )


def fleet_owner(fleet: str, *, shares_topics: bool) -> str:
    """Return the owner of a fleet's prefix. No daemon has a name with spaces in it."""
    return f"{_FLEET}{fleet}, whose shards {'share their topics' if shares_topics else 'have topics of their own'}"


def is_fleet(owner: str) -> bool:
    """Return whether the owner of a prefix is a fleet."""
    return owner.startswith(_FLEET)


def check_fleet(stored: Checkpoint, prefix: str, owner_: str) -> None:
    """Raise PrefixTakenError if somebody else than this fleet owns its prefix. `stored` has the claims to it."""
    by = owner(stored)
    if by is None or by == owner_:
        return
    raise PrefixTakenError(
        f"kafka.topic_prefix {prefix!r} belongs to {_shown(by)}, and this is the {owner_}",
        "If fleet.topics was changed, correct it: the fleet's new topics would lack all earlier rows. Otherwise give the fleet a "
        "kafka.topic_prefix of its own. If the owner is gone for good, start once with --take-prefix.",
    )


def _shown(owner_: str) -> str:
    return f"the {owner_}" if is_fleet(owner_) else f"the daemon {owner_!r}"


def claims(stored: Checkpoint, name: str, now_ms: int, *, takes: bool = False) -> list[tuple[bytes, bytes | None]]:
    """Return the records that make `name` the owner; none if it owns the prefix. With `takes`, end the others' claims."""
    others = [other for other in stored.owners if other != name] if takes else []
    if name in stored.owners and not others:
        return []
    return [*(owner_record(other, None) for other in others), owner_record(name, now_ms)]


def name_taken_message(stored: Checkpoint, name: str) -> str:
    """Return the message for a daemon whose checkpoint another process has written, with that process if it is known already."""
    sign = stored.signs.get(name)
    who = f", process {sign.process_id} on {sign.host}," if sign is not None and sign.writer == stored.writer else ""
    return f"another daemon{who} has taken the name {name!r}: this one ends, and nothing is lost"


def is_known_gone(stored: Checkpoint, name: str, ours: Collection[str]) -> bool:
    """Return whether certainly no process of this name is running, without listening.

    `ours` are the processes that have held the lock that this one holds now.
    """
    sign = stored.signs.get(name)
    if stored.writer is None:
        return sign is None
    return stored.writer in ours or (sign is not None and sign.is_last and sign.writer == stored.writer)


class Listening:
    """Evidence from listening to one daemon, and the conclusion from it.

    Times come from one monotonic clock, in seconds.
    """

    def __init__(self, started: float) -> None:
        self._quiet_since = started
        self._first_heard: float | None = None
        self.is_running = False

    def record_sign(self, now: float) -> None:
        """Record that a record of the daemon has arrived."""
        self._quiet_since = now
        if self._first_heard is None:
            self._first_heard = now
        self.is_running = self.is_running or now - self._first_heard >= APART_SECONDS

    def record_outage(self, now: float) -> None:
        """Record that Kafka doesn't answer: silence means nothing then, and later records may have been sent long before."""
        self._quiet_since = now
        self._first_heard = None

    def is_gone(self, now: float) -> bool:
        """Return whether the silence has lasted long enough."""
        return not self.is_running and now - self._quiet_since >= SILENCE_SECONDS
