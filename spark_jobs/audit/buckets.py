"""Who owns each bucket of a fleet, by what its daemons say in `<prefix>.<shard>.buckets` (docs/fleet.md). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from spark_jobs.audit.state import Finding
from spark_jobs.errors import JobError

_OWNED: Final = frozenset({"active", "pinned", "readonly", "sending"})
_ON_ITS_WAY: Final = frozenset({"receiving"})

States = Mapping[int, Mapping[str, str | None]]
"""Of each bucket, the state in each shard that has a record of it."""


def states(records: Mapping[str, Iterable[tuple[str, str | None]]]) -> dict[int, dict[str, str | None]]:
    """Return the buckets' states by the keys and the values of each shard's records, in order. Raises JobError for others."""
    found: dict[int, dict[str, str | None]] = {}
    for shard, pairs in records.items():
        for key, value in pairs:
            try:
                bucket = json.loads(key)["bucket"]
                status = None if value is None else json.loads(value).get("status")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise JobError(
                    f"The topic of buckets of the shard {shard!r} holds a record that isn't one: {key[:100]}"
                ) from error
            if bucket is not None:
                found.setdefault(int(bucket), {})[shard] = status
    return found


def judge(former: States, now: States) -> list[Finding]:
    """Return the buckets that two shards own, or none, in both of two looks: the shards' topics aren't read at one moment."""
    found = []
    for bucket, shards in sorted(now.items()):
        before = former.get(bucket, {})
        owners, earlier = (sorted(shard for shard, status in each.items() if status in _OWNED) for each in (shards, before))
        shown = ", ".join(f"{shard}: {status or 'none'}" for shard, status in sorted(shards.items()))
        if len(owners) > 1 and owners == earlier:
            told = f"The bucket {bucket} belongs to several shards ({shown}): its rows' changes have no order. Correct _bucket."
            found.append(Finding("bucket", told, space="_bucket", key=str(bucket)))
        elif not owners and not earlier and _ON_ITS_WAY.isdisjoint({*shards.values(), *before.values()}):
            told = f"The bucket {bucket} belongs to no shard ({shown}): nobody can read or write its rows. Correct _bucket."
            found.append(Finding("bucket", told, space="_bucket", key=str(bucket)))
    return found
