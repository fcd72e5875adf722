"""Commits that readers haven't been seen to reach: Kafka may confirm a commit that readers never get to (see cdc.kafka.hanging).

    committed(topics) ──▶ written(ends) ──▶ reached(offsets) … reached(offsets) ──▶ is_seen
                            the ends of the   the offsets that readers of committed no partition is open any more
                            partitions        messages reach, asked for later

Until the commits are seen, nothing may be written that could be aborted: an abort would also discard commits that still hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""


class UnseenCommits:
    """Commits of one producer whose messages readers haven't been seen to reach.

    Its topics may be shared: another producer's transaction may keep readers from its records.
    """

    def __init__(self) -> None:
        # Topics of the commits that haven't been seen.
        self._topics: frozenset[str] = frozenset()
        self._ends: Mapping[Place, int] | None = None
        # Partitions whose end readers don't reach, with the offset that they reach.
        self._open: dict[Place, int] = {}
        # Partitions where another producer's transaction keeps readers back, with the offset at which it begins.
        self._others: dict[Place, int] = {}

    @property
    def is_seen(self) -> bool:
        """Whether readers have been seen to reach everything that was committed."""
        return not self._topics

    @property
    def topics(self) -> frozenset[str]:
        """Topics to ask for the ends of all their partitions."""
        return self._topics

    @property
    def has_ends(self) -> bool:
        """Whether `written` has recorded the ends that readers must reach."""
        return self._ends is not None

    @property
    def open(self) -> Mapping[Place, int]:
        """Partitions whose end readers haven't been seen to reach, with the offset that they reach."""
        return self._open

    def committed(self, topics: Iterable[str]) -> None:
        """Record that a transaction was committed that wrote to these topics."""
        self._topics = self._topics.union(topics)
        self._ends = None

    def ask_again(self) -> None:
        """Ask for the ends again: partitions didn't answer, because they may have been deleted or created again."""
        self._ends = None

    def written(self, ends: Mapping[Place, int]) -> None:
        """Record the ends of the partitions of `topics`, including uncommitted records. They were asked for after the commit.

        Records that others write after these ends may stay open as long as they like.
        """
        self._ends, self._open = ends, dict.fromkeys(ends, 0)

    def reached(self, offsets: Mapping[Place, int]) -> None:
        """Record the offsets that readers reach in the `open` partitions. They were asked for after the ends."""
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

    def ignore(self, places: Iterable[Place]) -> None:
        """Stop waiting for these `open` partitions: another producer keeps readers from their ends.

        Until readers advance there, nothing can be seen.
        """
        for place in list(places):
            self._others[place] = self._open.pop(place)
        if not self._open:
            self._topics, self._ends = frozenset(), None
