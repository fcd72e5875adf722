"""What the events after the watermark are like, by space: the forms that they name, how many have patches, and truncations.

The merger learns it in the query that reads new events for the watermark, so that a merge needn't read all of its events just to
plan how it combines them. This module only keeps what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its customary name


@dataclass(frozen=True)
class Summary:
    """Some events of a space that name the same form. `truncated` is the seq of the last truncation among them."""

    space_id: int
    schema_version: int
    events: int
    patches: int
    truncated: int | None
    first: int
    last: int

    def and_more(self, other: Summary) -> Summary:
        """Return the summary of both."""
        truncations = [seq for seq in (self.truncated, other.truncated) if seq is not None]
        return Summary(
            self.space_id,
            self.schema_version,
            self.events + other.events,
            self.patches + other.patches,
            max(truncations, default=None),
            min(self.first, other.first),
            max(self.last, other.last),
        )


def summary_columns() -> list[Column]:
    """Return the aggregates of a group of events of one form: the fields of Summary from `events` on, in their order."""
    return [
        F.count("*").alias("events"),
        F.count("patch").alias("patches"),
        F.max(F.when(F.col("op") == "t", F.col("seq"))).alias("truncated"),
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
    ]


@dataclass
class Summaries:
    """Summaries of all events after the seq `after`, by space, in groups of events with neighbouring seqs."""

    after: int = 0
    _found: dict[str, dict[tuple[int, int, int], Summary]] = field(default_factory=dict)
    _after: dict[str, int] = field(default_factory=dict)

    def add(self, space: str, group: int, summary: Summary) -> None:
        """Add more events of a group."""
        groups = self._found.setdefault(space, {})
        key = (group, summary.space_id, summary.schema_version)
        groups[key] = groups[key].and_more(summary) if key in groups else summary

    def lack(self, space: str, up_to: int) -> None:
        """Note that events of a space up to a seq may be missing here."""
        self._after[space] = max(up_to, self._after.get(space, self.after))

    def between(self, space: str, after: int, up_to: int) -> Sequence[Summary] | None:
        """Return the summaries of a space's events after a seq and up to another; None if that isn't known.

        It is known only if each group is within these limits or outside. Groups before them aren't needed any more.
        """
        groups = self._found.get(space, {})
        for key in [key for key, found in groups.items() if found.last <= after]:
            del groups[key]
        inside = [found for found in groups.values() if found.first <= up_to]
        is_known = after >= self._after.get(space, self.after)
        return inside if is_known and all(after < found.first and found.last <= up_to for found in inside) else None
