"""Decides when a standby takes the name of the daemon that has it. The module uses neither a clock nor a broker itself.

A second daemon of a name waits until the first is gone, and goes on where that one has stopped. What makes it safe is what makes
every start safe: the claim of the transactional id, by which Kafka fences whoever had it. All else is a hint of when to claim. A
claim too early fences a daemon that works, and costs a pause of a second or two; no claim can lose or repeat anything.

The hint is the sign of life that a daemon writes to the checkpoint topic every SIGN_SECONDS (cdc.kafka.sign_of_life). Membership
in a consumer group would be no better: a broker doesn't tell a group of a member's death but at the end of its session, which
brokers allow from 6 s on only.

    first      sign   sign   sign ✝ killed, or frozen                                      (woken: fenced at its next commit)
                │      │      │                                                             ▲
    Kafka     ──┴──K1──┴──K2──┴──────────────────────────────────┬──claim──K2──K3──────────┴──
                   │      │   ├──────── SILENT_SECONDS ──────────┤  ▲       │
    standby     rows up to K1, K2: into its own store           gone ┘      publishes from K2 on

    ─ The topic is quiet only while the partition's leader says that there is nothing more. An outage of Kafka is no silence of
      the daemon, and behind one the first sign may have been sent long before: so the patience is SILENCE_SECONDS then, as for
      a daemon that has never been heard, until signs at two moments have come.
    ─ A daemon that ends in order says so in a last sign: then there is nothing to wait for. So does nobody who was fenced; and
      the last sign of a daemon whose successor was heard before is no news.
    ─ A listener may be deaf: its process was frozen, or its client reads a topic that was deleted and made again. So the newest
      sign is read by another client before a claim, and a sign that wasn't heard begins the wait anew.
    ─ Two standbys may claim at the same time. Kafka gives the name to the later one, and fences the other, which ends; a service
      manager starts it again, as a standby.
    ─ The store holds the rows as of S ≤ K, the newest checkpoint (cdc.stream.held_back), so that a claim finds it as a restart
      finds a store: the rows between S and K are read for the store alone. While there is no such store, nothing is claimed:
      without it all rows would be published again.
"""

from __future__ import annotations

from typing import Final

from cdc.stream.commits.checkpoint import Sign
from cdc.stream.commits.ownership import APART_SECONDS, SILENCE_SECONDS

SILENT_SECONDS: Final = 2.25
"""Silence, in seconds, after which a daemon that was heard regularly counts as gone: four of its signs are missing, so that one
which is busy may be late by 1.75 s. The claim and the way to the first event take a second or two more."""


class Vigil:
    """What is known of the daemon that has the name. One thread records; another one may read `is_gone` and `writer`.

    Times come from one monotonic clock, in seconds.
    """

    def __init__(self, now: float, writer: str | None = None, *, has_ended: bool = False, sign: Sign | None = None) -> None:
        """`writer` is the process that wrote the checkpoint; `has_ended` if it has recorded that it ended in order.

        `sign` is the newest sign in the topic before the listening began.
        """
        self._quiet_since = now
        self._first_heard: float | None = None
        self.sign = sign
        """The newest sign, without positions."""
        self.is_steady = False
        """Whether the daemon is heard regularly, so that its silence is noticed soon."""
        self.writer = writer
        """The process that was heard last, or wrote the checkpoint."""
        self.is_gone = has_ended
        """Whether the name is free, as far as the signs tell."""

    def has_missed(self, newest: Sign | None) -> bool:
        """Whether the topic's newest sign, which another client has read, didn't arrive here: then the silence proves nothing."""
        return newest is not None and newest != self.sign

    def record_sign(self, sign: Sign, now: float) -> None:
        """Record a sign of life, or a position, that has arrived."""
        if sign.host:
            self.sign = sign
        if sign.is_last:
            self.is_gone = self.is_gone or sign.writer == self.writer
            return
        self.writer = sign.writer
        self._quiet_since = now
        if self._first_heard is None:
            self._first_heard = now
        self.is_steady = self.is_steady or now - self._first_heard >= APART_SECONDS
        self.is_gone = False

    def record_quiet(self, now: float) -> None:
        """Record that the partition's leader had nothing more at this time."""
        patience = SILENT_SECONDS if self.is_steady else SILENCE_SECONDS
        if now - self._quiet_since >= patience:
            self.is_gone = True

    def record_outage(self, now: float) -> None:
        """Record that Kafka doesn't answer. Nobody can be called gone by a silence that Kafka keeps."""
        self._quiet_since = now
        self._first_heard = None
        self.is_steady = self.is_gone = False
