"""Who owns each bucket of a fleet, by what its daemons say in `<prefix>.<shard>.buckets` (docs/fleet.md). Pure.

The daemons lag independently, so two records may be of different moments. The generation, which grows with each move, tells which
of them is older: a shard that hasn't come to a move may still be shown as the owner, and its receiver not at all. Neither is a
fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from spark_jobs.audit.state import Finding
from spark_jobs.errors import JobError

_OWNED: Final = frozenset({"active", "pinned", "readonly", "sending"})
_ON_ITS_WAY: Final = frozenset({"receiving"})


class BucketState(NamedTuple):
    """A bucket in a shard: its status in `_bucket`, None if it's gone, and the number of its last move, 0 if none is known."""

    status: str | None
    generation: int = 0


States = Mapping[int, Mapping[str, BucketState]]
"""Of each bucket, the state in each shard that has a record of it."""


def states(records: Mapping[str, Iterable[tuple[str, str | None]]]) -> dict[int, dict[str, BucketState]]:
    """Return the buckets' states by the keys and the values of each shard's records, in order. Raises JobError for others."""
    found: dict[int, dict[str, BucketState]] = {}
    for shard, pairs in records.items():
        for key, value in pairs:
            try:
                bucket = json.loads(key)["bucket"]
                told = {} if value is None else json.loads(value)
                state = BucketState(told.get("status"), told.get("generation") or 0)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise JobError(
                    f"The topic of buckets of the shard {shard!r} holds a record that isn't one: {key[:100]}"
                ) from error
            if bucket is not None:
                found.setdefault(int(bucket), {})[shard] = state
    return found


def judge(former: States, now: States) -> list[Finding]:
    """Return the buckets that two shards own, or none, in both of two looks: the shards' topics aren't read at one moment."""
    found = []
    for bucket, shards in sorted(now.items()):
        before = former.get(bucket, {})
        owners, earlier = _sure_owners(shards), _sure_owners(before)
        shown = ", ".join(f"{shard}: {state.status or 'none'}" for shard, state in sorted(shards.items()))
        if len(owners) > 1 and owners == earlier:
            told = f"The bucket {bucket} belongs to several shards ({shown}): its rows' changes have no order. Correct _bucket."
            found.append(Finding("bucket", told, space="_bucket", key=str(bucket)))
        elif _is_nowhere(shards) and _is_nowhere(before):
            told = f"The bucket {bucket} belongs to no shard ({shown}): nobody can read or write its rows. Correct _bucket."
            found.append(Finding("bucket", told, space="_bucket", key=str(bucket)))
    return found


def _sure_owners(shards: Mapping[str, BucketState]) -> list[str]:
    """Return the shards that own a bucket, without those that may have handed it over since they told of it."""
    newest = max((state.generation for state in shards.values()), default=0)
    return sorted(
        shard
        for shard, state in shards.items()
        if state.status in _OWNED and state.status != "sending" and state.generation == newest
    )


def _is_nowhere(shards: Mapping[str, BucketState]) -> bool:
    """Return whether nobody owns a bucket, and nobody is receiving it or may be without having told of it."""
    if any(state.status in _OWNED or state.status in _ON_ITS_WAY for state in shards.values()):
        return False
    newest = max((state.generation for state in shards.values()), default=0)
    of_newest = [state.status for state in shards.values() if state.generation == newest]
    return not (newest and of_newest == ["sent"])
