"""Fleets: which shards write under a prefix, and whether they share the topics of their spaces (docs/fleet.md).

    shared      <prefix>.<space>           all shards write it: source.name is the prefix, source.shard the shard
    per shard   <prefix>.<shard>.<space>   source.name is <prefix>.<shard>: to the jobs this is a daemon like any other
    both        <prefix>.<shard>.schema, and the other control topics: each shard's own

`source.seq` counts the events of one shard. A job that took the events of a shared topic for those of one daemon would have
several events with one seq, and none of its answers would be right. So a job that doesn't know fleets is refused here, and
`envelope.parse` ends at an event of a shard that isn't expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.contract.kafka_client import KafkaClient
from spark_jobs.contract.schema_topics import schema_records
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError

_SHARD: Final = "[A-Za-z0-9_-]{1,63}"


@dataclass(frozen=True)
class Writers:
    """Who writes under a prefix, by the records of schema topics. All of it is empty without a fleet."""

    sharing: tuple[str, ...] = ()
    """Shards that share the topics `<prefix>.<space>`."""
    apart: tuple[str, ...] = ()
    """Shards with topics of their own, `<prefix>.<shard>.<space>`."""
    part_of: str | None = None
    """Prefix of the fleet whose shared topics have the rows of this prefix: that of one of its shards."""


def writers(prefix: str, records: Mapping[str, Iterable[str]]) -> Writers:
    """Return who writes under a prefix. `records` has the values of `<prefix>.schema` and `<prefix>.<shard>.schema`, by topic."""
    sharing: set[str] = set()
    apart: set[str] = set()
    part_of = None
    for topic, values in records.items():
        shard = topic.removeprefix(f"{prefix}.").removesuffix("schema").rstrip(".")
        for name, named in map(_source, values):
            if named is None or name is None:
                continue
            # The fleet's prefix may itself end in the shard's name. Under another prefix, as of a mirror, that isn't known.
            is_apart = name.endswith(f".{named}") and name != (prefix if shard else prefix.removesuffix(f".{named}"))
            if not shard and prefix.endswith(f".{named}") and not is_apart:
                part_of = prefix.removesuffix(f".{named}")
            elif shard == named:
                (apart if is_apart else sharing).add(shard)
    return Writers(tuple(sorted(sharing)), tuple(sorted(apart)), part_of)


def with_shards(session: SparkSession, topics: Topics, job: str, *, takes_fleet: bool) -> Topics:
    """Return the topics with the shards of the fleet that shares them, if one does. Raises JobError if the job can't read them.

    `job` is the name that it is called by.
    """
    prefix = re.escape(topics.prefix)
    named = re.compile(rf"{prefix}\.(?:{_SHARD}\.)?schema")
    client = KafkaClient(session, topics)
    found = sorted(topic for topic in client.names() if named.fullmatch(topic))
    there = writers(topics.prefix, schema_records(session, topics, client, found))
    if there.part_of is not None:
        raise JobError(
            f"--prefix {topics.prefix!r} is that of a shard of a fleet with shared topics: its rows are in those of the whole"
            f" fleet. Start with --prefix {there.part_of}."
        )
    if there.apart:
        several = ", ".join(f"--prefix {topics.prefix}.{shard}" for shard in there.apart)
        raise JobError(
            f'--prefix {topics.prefix!r} is that of a fleet whose shards have topics of their own (fleet.topics = "per_shard").'
            f" Start a job for each shard, with a --path and a --checkpoint of its own: {several}."
        )
    if there.sharing and not takes_fleet:
        raise JobError(_refusal(job, topics.prefix, there.sharing))
    return replace(topics, shards=there.sharing) if there.sharing else topics


def _refusal(job: str, prefix: str, shards: Iterable[str]) -> str:
    by_table = {job: f"{job} --changes" for job in ("current", "search_index", "cache_invalidation")}
    by_table["history"] = "history_of --changes"
    remedy = (
        f"Start `changes` with this prefix, and `{by_table[job]}` with its table: there all events have one order."
        if job in by_table
        else "`changes`, `changelog` and `audit` can (without --typed, --partition-by-date and --changes), and `current`,"
        " `history_of`, `search_index` and `cache_invalidation` with the table of `changes`."
    )
    return (
        f"--prefix {prefix!r} is that of a fleet whose shards share their topics ({', '.join(shards)}). The seqs of different"
        f" shards can't be compared, and `{job}` can't read such topics. {remedy}"
    )


def _source(record: str) -> tuple[str | None, str | None]:
    """Return the names of the daemon's topics and of its shard in a schema record."""
    try:
        source = json.loads(record)["source"]
        return source.get("name"), source.get("shard")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None  # the jobs that need the record's form end with an error
