"""The seqs up to which something of a lake is done: their order is asserted wherever one of them changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from spark_jobs.lake.seqs import LakeSeqs, check_merged, check_read, forgettable


def test_the_mark_only_rises_and_is_published_once() -> None:
    seqs = LakeSeqs()
    assert (seqs.mark, seqs.published) == (0, -1)
    seqs.advance(5, known=7)
    seqs.advance(3, known=7)
    assert seqs.mark == 5
    assert [seqs.publish(seq) for seq in (3, 2, 3, 5)] == [True, False, False, True]
    seqs.check_merge(5)
    again = LakeSeqs(seqs.published)
    assert (again.mark, again.publish(5)) == (5, False)


def test_what_is_out_of_order_is_asserted() -> None:
    seqs = LakeSeqs(4)
    steps: list[Callable[[], object]] = [partial(seqs.advance, 9, 8), partial(seqs.publish, 5), partial(seqs.check_merge, 5)]
    for step in steps:
        with pytest.raises(AssertionError):
            step()
    assert (seqs.mark, seqs.published) == (4, 4)
    check_merged(-1, 3)
    check_read(-1, -1, 0)
    check_read(3, 3, 3)
    for check in (partial(check_merged, 4, 3), partial(check_read, 4, 3, 5), partial(check_read, 1, 6, 5)):
        with pytest.raises(AssertionError):
            check()
    assert [forgettable(merged, 5) for merged in (-1, 3, 9)] == [-1, 3, 5]
