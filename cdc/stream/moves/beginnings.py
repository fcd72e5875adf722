"""Beginnings of daemons while buckets move: what a shard owes consumers until each daemon has seen every other one begin.

A daemon begins with a snapshot, and knows nothing of what was in the log before. So if a bucket goes from A to B before B's
daemon begins,

    A's daemon       r r u u ──────────────── sent        it lags: its events come after B's
    B's users                active u d u
    B's daemon                            r r u           what was deleted at B, it never had: the row's last event is A's

and nothing in B's log orders the two, nor says what B's users have deleted. The row may even be in another bucket by now. What
does order them is each daemon's promise that it has published everything that its master had when it read of another's beginning:
it has *seen* this daemon begin.

    sent, to a shard whose daemon it hasn't seen     A's daemon publishes a `d` of each row of the bucket: B's daemon shows those
                                                     that are left, in its snapshot, or when the bucket arrives
    all have seen all                                no older event can come any more: a shard that has rows of which older events
                                                     may have come shows all its rows again

Until a shard is settled in this way, the rows of buckets that leave it count as unpublished, and whoever gets them shows them,
and shows them again in turn. Fleets that begin while no bucket moves have nothing to show again.

A daemon that begins again (a gap in the stream, lost state) has to be seen again by the others, and nothing else: what has been
taken away meanwhile was published. What has arrived meanwhile it shows again once it is seen.
"""

from __future__ import annotations

from dataclasses import replace

from cdc.stream.moves.records import SENT, ShardRecord, Shards, Step


class Beginnings:
    """What one shard's daemon has seen of the others, and is to do until it is settled."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.record = shards.own.record or ShardRecord("")
        """The shard as of the rows that have been processed."""
        self.has_news = False
        """Whether the record has changed since it was written last."""
        self.arrived_unseen: list[int] = []
        """The buckets that have arrived while the daemon didn't follow, if it has begun again in this connection."""
        # By shard: the beginning that is seen once the rows are gone that wait under numbers up to this one.
        self._nearly: dict[str, tuple[int, int]] = {}

    @property
    def is_certain(self) -> bool:
        """Whether what this shard publishes of a row is what consumers have of it."""
        return self.record.is_settled and not self.record.is_doubtful

    @property
    def must_settle(self) -> bool:
        """Whether all have seen all, and this shard has yet to draw the conclusion."""
        return bool(self.record.replicaset_uuid) and not self.is_certain and self._have_seen_each_other

    @property
    def _have_seen_each_other(self) -> bool:
        return not self._shards.awaited(self.record)

    @property
    def awaits(self) -> list[str]:
        """The shards whose daemons have to begin, or to see others begin, before this shard is settled."""
        return self._shards.awaited(self.record) if self.record.replicaset_uuid and not self.is_certain else []

    def begin(self, own_uuid: str, now_us: int, arrived: list[int]) -> None:
        """Note that the daemon begins, or begins again. `arrived` are owned buckets that weren't here when it was there last."""
        before = self.record
        self._nearly.clear()
        if not before.replicaset_uuid:
            self._change(ShardRecord(own_uuid, now_us))
        else:
            self.arrived_unseen = arrived
            self._change(
                replace(
                    before,
                    replicaset_uuid=own_uuid,
                    began_us=now_us,
                    is_doubtful=before.is_doubtful or bool(arrived),
                    arrived_unseen=before.arrived_unseen + len(arrived),
                )
            )

    def unseen(self) -> list[tuple[str, int]]:
        """Return the shards whose daemons have begun without having been seen, and when they began."""
        return [(name, began_us) for name, began_us in self._shards.begun() if self.record.seen.get(name) != began_us]

    def see(self, name: str, began_us: int, last_number: int) -> None:
        """Note that everything has been handled that the master had when a beginning was read.

        Rows up to this number may wait.
        """
        self._nearly[name] = began_us, last_number

    def go_on(self, oldest_number: int | None) -> None:
        """Note which the oldest row is that waits; None if none does."""
        for name, (began_us, last_number) in list(self._nearly.items()):
            if oldest_number is None or oldest_number > last_number:
                del self._nearly[name]
                self._change(replace(self.record, seen={**self.record.seen, name: began_us}))

    def is_taken_away(self, step: Step) -> bool:
        """Return whether a state has a bucket's rows leave for a shard whose daemon may begin only after their arrival."""
        if step.status != SENT:
            return False
        names = self._shards.named(step.peer)
        return any(self.record.seen.get(name) is None for name in names)

    def take_away(self) -> None:
        """Note that rows have been taken away."""
        self._change(replace(self.record, departed=self.record.departed + 1))

    def doubt(self) -> None:
        """Note that rows have arrived of which older events may come yet."""
        if not self._have_seen_each_other and not self.record.is_doubtful:
            self._change(replace(self.record, is_doubtful=True))

    def settle(self) -> bool:
        """Note that this shard is settled; return whether it has to show its rows again."""
        is_first = not self.record.is_settled
        shows = self.record.is_doubtful or (is_first and self._shards.have_departed)
        self._change(replace(self.record, is_settled=True, is_doubtful=False))
        return shows

    def _change(self, record: ShardRecord) -> None:
        self.record, self.has_news = record, True
