"""What has been committed and hasn't been seen to be readable: Kafka may say "committed" and mean less (see cdc.kafka.hanging).

    committed(topics) ──▶ written(ends) ──▶ reached(offsets) … reached(offsets) ──▶ is_seen
                            up to where       up to where readers of committed      nothing is open any more
                            there is anything messages get, asked later

Until it is seen nothing may be written that could be aborted: an abort would take along what still hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""


class Unseen:
    """Of one producer, whose topics may be shared: another's transaction may keep readers in front of this one's."""

    def __init__(self) -> None:
        # Those of the commits that haven't been seen.
        self._topics: frozenset[str] = frozenset()
        self._ends: Mapping[Place, int] | None = None
        # Where readers don't get to the end, with where they are.
        self._open: dict[Place, int] = {}
        # Where another producer's transaction begins that readers are in front of.
        self._others: dict[Place, int] = {}

    @property
    def is_seen(self) -> bool:
        """Whether readers have been seen to reach all that was committed."""
        return not self._topics

    @property
    def topics(self) -> frozenset[str]:
        """Whose ends are to be asked for, of all their partitions."""
        return self._topics

    @property
    def has_ends(self) -> bool:
        """Whether `written` has told up to where readers must get."""
        return self._ends is not None

    @property
    def open(self) -> Mapping[Place, int]:
        """The partitions that readers haven't been seen to reach the end of, with how far they get."""
        return self._open

    def committed(self, topics: Iterable[str]) -> None:
        """A transaction has been committed that wrote to these topics."""
        self._topics = self._topics.union(topics)
        self._ends = None

    def ask_again(self) -> None:
        """Partitions didn't tell: they may be gone, or have been made anew, so their ends are to be asked for again."""
        self._ends = None

    def written(self, ends: Mapping[Place, int]) -> None:
        """Where the partitions of `topics` end, with what isn't committed, asked for after the commit.

        What others write behind that may be open as long as it likes.
        """
        self._ends, self._open = ends, dict.fromkeys(ends, 0)

    def reached(self, offsets: Mapping[Place, int]) -> None:
        """How far readers get in the partitions that are `open`, asked for after their ends."""
        assert self._ends is not None, "the ends have been asked for"
        found: dict[Place, int] = {}
        for place in self._open:
            offset = offsets[place]
            if self._others.get(place, offset) != offset:
                del self._others[place]
            if offset < self._ends[place] and place not in self._others:
                found[place] = offset
        self._open = found
        if not found:
            self._topics, self._ends = frozenset(), None

    def leave(self, places: Iterable[Place]) -> None:
        """What keeps readers from the ends of these `open` partitions is another producer's: until they get on, nothing can be
        seen there.
        """
        for place in list(places):
            self._others[place] = self._open.pop(place)
        if not self._open:
            self._topics, self._ends = frozenset(), None
