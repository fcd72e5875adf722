"""Topics that a job reads for the first time although it has published a watermark before.

`--spaces` was widened, or the job was given the right to see a topic. Such a topic may have events before the watermark: a gap
when the watermark passed it. Until the topic has been read up to the end that it had then, its space's table must stay as it
is: nobody would look again for events up to the seq to which the table is merged.

This module only decides; the lake keeps what is noted, beside the watermark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_jobs.contract.owner import topic_suffix
from spark_jobs.lake.watermark import Ends

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True)
class LateTopics:
    """Topics noted so far: how many partitions of each are known, and the ends up to which late partitions must still be read."""

    prefix: str
    known: Mapping[str, int]
    held: Ends

    @classmethod
    def first(cls, prefix: str, read: Ends) -> LateTopics:
        """Return the notes of a job that has read these partitions since its beginning."""
        return cls(prefix, _counts(read), {})

    def after(self, read: Ends, ends: Ends) -> tuple[LateTopics, set[Place]]:
        """Return the notes after a batch that ends at `read`, and the late partitions that have been read now.

        The topics' ends, `ends`, were looked up after the batch.
        """
        fresh = {place: ends.get(place, 0) for place in read if place[1] >= self.known.get(place[0], 0)}
        late = {**fresh, **self.held}
        held = {place: end for place, end in late.items() if read.get(place, 0) < end}
        if not late:
            return self, set()
        return LateTopics(self.prefix, {**self.known, **_counts([*fresh, *self._last()])}, held), late.keys() - held.keys()

    def holds(self, space: str) -> bool:
        """Return whether a space's table must stay as it is."""
        topic = f"{self.prefix}.{topic_suffix(space)}"
        return any(place[0] == topic for place in self.held)

    def to_json(self) -> str:
        """Return the notes as JSON, for a table's property."""
        return json.dumps(
            {"prefix": self.prefix, "known": self.known, "held": [[*place, end] for place, end in self.held.items()]}
        )

    @classmethod
    def from_json(cls, text: str) -> LateTopics:
        """Return the notes that `to_json` wrote."""
        kept = json.loads(text)
        return cls(kept["prefix"], kept["known"], {(topic, partition): end for topic, partition, end in kept["held"]})

    def _last(self) -> list[Place]:
        return [(topic, count - 1) for topic, count in self.known.items()]


def _counts(places: Collection[Place]) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic, partition in places:
        found[topic] = max(found.get(topic, 0), partition + 1)
    return found
