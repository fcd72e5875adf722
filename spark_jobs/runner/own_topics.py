"""Check, before and during a query, that its topics and their Kafka cluster are those of its checkpoint and its tables.

A wrong answer to any of these questions would end in tables with missing or foreign rows, and nothing would tell:

* Which topics under the prefix are the daemon's own (owner.py)? The others are left out.
* Does the prefix have topics at all?
* Is it the cluster, and are they the topics, whose offsets the checkpoint holds? A topic that was created again begins with
  offset 0 again. The checkpoint would skip its first records.
* Does the query still read all topics that it has read before?
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from difflib import SequenceMatcher
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.envelope import CONTROL_TOPICS, OPTIONAL_TOPICS
from spark_jobs.contract.kafka_client import Identity, KafkaClient
from spark_jobs.contract.owner import Owner, owner_of_fleet
from spark_jobs.contract.schema_topics import REFUSED, schema_records
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.runner.checkpoint import CheckpointFile, last_begun_batch, offsets_of_batch

_FILE: Final = "tarantool_cdc_kafka.json"
_SHOWN_MAX: Final = 10
_LOOKED_AT: Final = 20
"""Number of records of a topic that show whose it is."""


class OwnTopics:
    """The checks of one query."""

    def __init__(self, session: SparkSession, topics: Topics, checkpoint: str, control: Collection[str]) -> None:
        """`control` has the names of the control topics that the query reads. The result of the checks is in `topics.known`."""
        self._session = session
        self._topics = topics
        self._checkpoint = checkpoint
        self._control = frozenset(control)
        self._schemas = topics.controls(["schema"])
        self._schema = self._schemas[0] if len(self._schemas) == 1 else f"{topics.prefix}.<shard>.schema"
        self._client = KafkaClient(session, topics)
        self._file = CheckpointFile(session, checkpoint, _FILE)
        self._identity = Identity()
        self._schema_ends: dict[tuple[str, int], int] | None = None
        self._asked: set[str] = set()
        """Topics whose ids Kafka was asked for."""
        self._own: set[str] = set()
        self._looked_at: dict[str, int] = {}
        """Of topics that nothing shows to be the owner's: the end up to which their records have been looked at."""

    def begin(self, job: str, *, ends_without_topics: bool) -> None:
        """Check everything before the query starts. Raises JobError.

        A prefix without topics is an error with `ends_without_topics`, and else a line on stderr.
        """
        there = self._client.names()
        selected = {*self._client.of_spaces(), *self._control}
        last = last_begun_batch(self._session, self._checkpoint)
        read = set() if last is None else {topic for topic, _ in offsets_of_batch(self._session, self._checkpoint, last)}
        self._check_identity(read)
        if left_out := sorted((read & there) - selected):
            raise _left_out(self._checkpoint, left_out, self._topics.spaces)
        if not there & selected - self._control:
            said = _lacking(self._topics, there)
            if ends_without_topics and said is not None:
                raise JobError(said)
            print(f"{job}: {said or 'no space has a topic yet.'} The job waits for topics.", file=sys.stderr)
        self._learn(there, job)

    def before_batch(self, batch: int, job: str) -> None:
        """Find the topics of a batch that aren't the owner's. Raises JobError."""
        ends: dict[str, int] = {}
        for (topic, _), end in offsets_of_batch(self._session, self._checkpoint, batch).items():
            ends[topic] = ends.get(topic, 0) + end
        if not ends.keys() <= self._asked:
            found = self._ask_identity(ends)
            self._keep(Identity(found.cluster or self._identity.cluster, {**self._identity.topics, **found.topics}))
        unknown = {topic for topic, end in ends.items() if end} - self._own - self._control
        # Also if all topics are known: a space's rows may go to another topic from now on.
        if self._client.ends(self._schemas) != self._schema_ends:
            self._learn(self._client.names(), job)
        self._topics.known.foreign = frozenset(topic for topic in unknown if not self._is_own(topic, ends[topic], job))

    def _is_own(self, topic: str, end: int, job: str) -> bool:
        """Return whether a topic is the owner's. Its `end` tells whether it has other records than before."""
        owner = self._topics.known.owner
        assert owner is not None
        is_optional = topic.removeprefix(f"{self._topics.prefix}.") in OPTIONAL_TOPICS
        if owner.is_doubtful and not is_optional:
            return True  # nobody knows; it isn't noted, because the schema topic may come later
        if topic in owner.topics:
            self._own.add(topic)
            return True
        if self._looked_at.get(topic) != end:
            name = F.get_json_object(F.col("value").cast("string"), "$.source.name").alias("name")
            some = self._topics.read(self._session, topic).where("value is not null").select(name).limit(_LOOKED_AT).collect()
            names = {row["name"] for row in some}
            if names and owner.has_one_of(names):
                # The record with the space's form is gone. The jobs that need the form say so.
                self._own.add(topic)
                return True
            if names and topic not in self._looked_at and not is_optional:
                daemons = ", ".join(sorted(repr(name) for name in names if name)) or "no daemon"
                print(
                    f"{job}: leaves out the topic {topic}: its events are those of {daemons}, and {self._schema} names no such"
                    " space.",
                    file=sys.stderr,
                )
            if names:
                self._looked_at[topic] = end
        return False

    def _learn(self, there: Collection[str], job: str) -> None:
        """Read who owns the prefix, and which spaces it has named."""
        self._schema_ends = self._client.ends(self._schemas)
        before = self._topics.known.owner
        owner = self._owner()
        self._topics.known.owner = owner
        if owner.routed:
            self._check_routed(owner.routed)
        if owner.is_doubtful and (before is None or not before.is_doubtful) and there:
            print(
                f"{job}: the topic {self._schema}, which tells whose topics these are, is missing, empty or can't be read. The"
                f" job takes every topic whose name begins with {self._topics.prefix + '.'!r}.",
                file=sys.stderr,
            )

    def _check_routed(self, routed: Mapping[str, str]) -> None:
        """Raise JobError if the job is to read spaces whose events go to topics of other names, or such topics."""
        own = f"{self._topics.prefix}."
        names = {name for space, topic in routed.items() for name in (space, topic.removeprefix(own))}
        chosen = set(self._topics.chosen(self._session, names))
        found = {space: topic for space, topic in routed.items() if chosen & {space, topic.removeprefix(own)}}
        if found:
            raise _elsewhere(self._topics, found)

    def _owner(self) -> Owner:
        """Return the owner as the schema topics tell. Raises JobError."""
        topics = self._topics
        records = schema_records(self._session, topics, self._client, self._schemas)
        if not topics.shards:
            return Owner.of(topics.prefix, records[self._schema])
        return owner_of_fleet(topics.prefix, {shard: records[topics.control_of(shard, "schema")] for shard in topics.shards})

    # The cluster, and the ids of topics.

    def _check_identity(self, read: Collection[str]) -> None:
        """Raise JobError if the cluster or a topic isn't the one that the checkpoint has read."""
        kept = self._file.read()
        known = Identity() if kept is None else Identity(kept["cluster"], kept["topics"])
        found = self._ask_identity({*known.topics, *read})
        if known.cluster and found.cluster and known.cluster != found.cluster:
            raise JobError(
                f"The checkpoint {self._checkpoint} has offsets of the Kafka cluster {known.cluster}, and"
                f" {self._topics.bootstrap_servers} is the cluster {found.cluster}, where they mean other records. Name the"
                " former cluster in --bootstrap-servers, or begin anew: with an empty --checkpoint and a new --path (or --index)."
            )
        again = sorted(topic for topic, number in found.topics.items() if known.topics.get(topic, number) != number)
        if again:
            raise JobError(
                f"Since the checkpoint {self._checkpoint} was written, {_listed('topic', again)} deleted and created again, so"
                " its offsets mean other records, and the job would skip the first ones. Begin anew: with an empty --checkpoint"
                " and a new --path (or --index). If the daemon has kept its state, have it send the rows again first"
                " (tarantool-cdc snapshot)."
            )
        self._keep(Identity(found.cluster or known.cluster, {**known.topics, **found.topics}))

    def _ask_identity(self, topics: Collection[str]) -> Identity:
        self._asked.update(topics)
        try:
            return self._client.identity(topics)
        except Py4JError as error:
            if REFUSED not in str(error):
                raise
            return Identity()  # this user may not ask

    def _keep(self, identity: Identity) -> None:
        if identity != self._identity:
            self._identity = identity
            self._file.write({"cluster": identity.cluster, "topics": dict(identity.topics)})


def _left_out(checkpoint: str, topics: Collection[str], spaces: str) -> JobError:
    return JobError(
        f"With the checkpoint {checkpoint} the job has read {_listed('topic', topics, verb=False)}, which it wouldn't read any"
        f" more with --spaces {spaces!r}. Start it with the former --spaces, or with an empty --checkpoint."
    )


def _elsewhere(topics: Topics, routed: Mapping[str, str]) -> JobError:
    shown = [f"{space!r} to {topic}" for space, topic in sorted(routed.items())]
    return JobError(
        f"By its rules ([routing]) the daemon writes the rows of {_some(shown)}. The jobs read a space's rows from the topic"
        f" {topics.prefix}.<space> only. Leave these spaces and topics out with --spaces, or let a second daemon, with a prefix"
        " of its own and without such rules, publish for the jobs."
    )


def _lacking(topics: Topics, there: Collection[str]) -> str | None:
    """Return a sentence about a prefix or --spaces without any topic; None if the daemon has none yet."""
    beginning = f"{topics.prefix}."
    under = sorted(topic for topic in there if topic.startswith(beginning))
    control = {f"{beginning}{name}" for name in (*CONTROL_TOPICS, *OPTIONAL_TOPICS)}
    spaces = [topic.removeprefix(beginning) for topic in under if topic not in control]
    if spaces:
        return f"--spaces {topics.spaces!r} selects none of the spaces with topics: {_some(spaces)}."
    if under:
        return None
    prefixes = [topic.removesuffix(".schema") for topic in there if topic.endswith(".schema")]
    # Those that are written alike first: the name may be mistyped.
    prefixes.sort(key=lambda prefix: (-SequenceMatcher(None, topics.prefix, prefix).ratio(), prefix))
    others = f"Prefixes there: {_some(prefixes)}." if prefixes else "No prefix has a topic <prefix>.schema there."
    return (
        f"{topics.bootstrap_servers} has no topic whose name begins with {beginning!r}. Check --prefix (the daemon's"
        f" kafka.topic_prefix) and --bootstrap-servers, that the daemon has started, and that this user may see its"
        f" topics. {others}"
    )


def _listed(what: str, names: Collection[str], *, verb: bool = True) -> str:
    several = len(names) > 1
    be = (" were" if several else " was") if verb else ""
    return f"the {what}{'s' if several else ''} {_some(names)}{be}"


def _some(names: Collection[str]) -> str:
    shown = list(names)[:_SHOWN_MAX]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more
