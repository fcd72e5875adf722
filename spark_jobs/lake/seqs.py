"""The seqs up to which something of a lake is done, and their order. Pure.

Each of them is a `source.seq`, or -1 if nothing is done yet. None of them ever decreases.

    forgotten ≤ merged ≤ mark ≤ known        published ≤ mark
        │         │       │       │              └ the mark that readers use, which they find beside the tables
        │         │       │       └ the highest seq of an appended event or of a control record; earlier events may be missing
        │         │       └ the watermark: all events up to it are appended, and a source transaction ends there
        │         └ of a space: its table has its events up to this one, and no later ones
        └ of a space: `maintain` has removed these events, as each version of the table that VACUUM keeps has them

`published` follows `mark` once the changes of names and keys up to there have been carried out. A space may be merged beyond
`published` while its rows are moved for such a change, also by a run that was ended then. The events after `published` are
examined again after a start, so `mark` soon passes that place.

A reader of a space as of a seq (`up_to`; without one, there is no limit) uses the version of the table with the highest
`merged ≤ up_to`, and on top of it the events in `merged < seq ≤ bound`:

    forgotten ≤ merged ≤ bound = min(up_to, unapplied)
                                              └ the first change of name or key that the space's table hasn't applied

Rows up to the `floor` are gone by a truncation among these events, or by the sweep of a snapshot that has ended by `bound`.

In the job itself, `batch` and the offsets of its partitions say what has been read. They aren't seqs: an event of a slow
partition may have a lower seq than any that has been read (watermark.py).
"""

from __future__ import annotations


class LakeSeqs:
    """The watermark of a lake, and the published one. All methods keep, and assert, the order."""

    def __init__(self, published: int = -1) -> None:
        """Begin where an earlier run has published a watermark."""
        self.published = published
        self.mark = max(published, 0)

    def advance(self, mark: int, known: int) -> None:
        """Raise the mark, unless it is higher already. `known` is the highest seq that any record has."""
        assert mark <= max(known, self.mark), f"the mark {mark} is beyond all records, which end at {known}"
        self.mark = max(self.mark, mark)

    def publish(self, seq: int) -> bool:
        """Publish a seq, and return whether it is a new one: the readers' watermark never goes back."""
        assert seq <= self.mark, f"{seq} is published beyond the mark {self.mark}"
        if seq <= self.published:
            return False
        self.published = seq
        return True

    def check_merge(self, up_to: int) -> None:
        """Assert that all events up to this one are complete, as a table never looks for earlier events again."""
        assert up_to <= self.mark, f"a space is merged up to {up_to}, beyond the mark {self.mark}"


def check_merged(former: int, merged: int) -> None:
    """Assert that a table isn't merged back: Delta would leave out such a write without a word."""
    assert former <= merged, f"a table that is merged up to {former} gets the rows as of {merged}"


def check_read(forgotten: int, merged: int, bound: int) -> None:
    """Assert that the events of a read, those after `merged` and up to `bound`, are all there."""
    assert forgotten <= merged <= bound, f"forgotten {forgotten}, merged {merged} and bound {bound} aren't in order"


def forgettable(merged: int, published: int) -> int:
    """Return the seq up to which a space's events may be removed; -1 if none may."""
    return min(merged, published)
