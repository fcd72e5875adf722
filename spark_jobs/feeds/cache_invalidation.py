"""Job `cache_invalidation`: remove changed rows from a cache (fill.py explains why the protocol is safe).

Invalidations may be repeated, late and in any order: each one only removes a value, so an additional one costs a cache miss at
most. A batch is complete when the cache has answered for each of its keys.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import control_topics, json_text
from spark_jobs.contract.envelope import CONTROL, CONTROL_TOPICS, OPTIONAL_TOPICS, parse
from spark_jobs.contract.forms import Forms, Version
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds.bulk import Place, Refused, where
from spark_jobs.feeds.caches import Address
from spark_jobs.feeds.feed import Feed
from spark_jobs.feeds.keys import DEFAULT, Template, places, stale_keys, with_names
from spark_jobs.feeds.records import give_up
from spark_jobs.runner.job import Sink
from spark_jobs.runner.options import secret

_CHUNK: Final = 2000
_SKIP: Final = "--on-error dead-letter skips it"
_FOUND_SCHEMA: Final = "key string, value string, report string"
"""Schema of the records for the topic, followed by each worker's report."""


class CacheInvalidation(Feed):
    """The job `cache_invalidation`."""

    name = "cache_invalidation"
    summary = "remove changed rows from Redis or memcached, or write their keys to a topic"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        super().add_options(parser)
        add = parser.add_argument
        add(
            "--to",
            required=True,
            metavar="URL",
            help="redis[s]://HOST:PORT/DB, memcached[s]://HOST:PORT,… or kafka://HOST:PORT,…/TOPIC",
        )
        add("--user", help="the user to log in as (Redis)")
        add("--password", type=secret, metavar="@FILE|$NAME", help="the password (Redis): a file with it, or a variable")
        add("--ca-file", metavar="FILE", help="the certificates to trust (rediss, memcacheds), on every worker")
        add("--certificate-file", metavar="FILE", help="the job's own certificate, on every worker")
        add("--key-file", metavar="FILE", help="its key")
        add(
            "--key",
            action="append",
            default=[],
            type=_template,
            metavar="SPACE=TEMPLATE",
            help=f"the cache's key of a row of a space (users=user:{{id}}); repeatable; default for other spaces: {DEFAULT}",
        )
        add(
            "--hold-seconds",
            type=float,
            default=0,
            metavar="N",
            help="block filling of a key for N seconds after its change (default: 0)",
        )
        add("--patience-seconds", type=float, default=300, metavar="N", help="how long to wait for the cache (default: 300)")

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """See `Job.sink`."""
        address = Address(
            url=options.to,
            user=options.user,
            password=options.password,
            ca_file=options.ca_file,
            certificate_file=options.certificate_file,
            key_file=options.key_file,
            hold_seconds=options.hold_seconds,
            patience_seconds=options.patience_seconds,
        )
        return InvalidationSink(session, topics, address, dict(options.key), read_topic=self.forms(options))


class Stale(NamedTuple):
    """A stale key of the cache, and the change that made it stale."""

    key: str
    space: str
    op: str
    seq: int


class Trouble(NamedTuple):
    """Why a change doesn't tell which keys it makes stale."""

    sentence: str


@dataclass(frozen=True)
class Plan:
    """Data that the workers need: templates by space, and forms' field names by space_id and schema_version, in order."""

    templates: Mapping[str, Template]
    names: Mapping[Version, tuple[str, ...]]
    lost: frozenset[Version] = frozenset()
    """Forms that the schema topic lacks: retention has removed their records. Each of their rows tells its own names."""

    def template(self, space: str) -> Template:
        """Return the template of a space."""
        return self.templates.get(space) or Template.parsed(DEFAULT).of(space)

    def forms(self, space_id: int) -> list[tuple[str, ...]]:
        """Return the field names of all forms of a space, in order."""
        return [names for (owner, _), names in sorted(self.names.items()) if owner == space_id]


@dataclass
class Report:
    """Report of one worker, or of all workers, about a batch."""

    refused: list[Refused] = field(default_factory=list)
    truncated: dict[str, int] = field(default_factory=dict)
    unknown: set[Version] = field(default_factory=set)
    """Forms that the plan lacks; if there are any, the batch isn't complete."""
    has_control: bool = False
    held: list[str] = field(default_factory=list)
    """The invalidated keys, if the cache can lose their holds."""

    def merge(self, other: Report) -> None:
        """Merge another report into this one."""
        self.refused += other.refused
        for space, seq in other.truncated.items():
            self.truncated[space] = max(seq, self.truncated.get(space, -1))
        self.unknown |= other.unknown
        self.has_control |= other.has_control
        self.held += other.held


class RecentHolds:
    """Keys whose holds may not have expired yet, for caches that lose holds when they are emptied. Pure."""

    def __init__(self, hold_seconds: float, now: float) -> None:
        """`now` is the time of the job's start, in seconds of a steady clock."""
        self._hold_seconds = hold_seconds
        self._earlier_end_at = now + hold_seconds
        self._found: deque[tuple[float, list[str]]] = deque()

    def add(self, keys: list[str], now: float) -> None:
        """Note keys that have been invalidated, and forget those whose holds have expired."""
        if keys:
            self._found.append((now, keys))
        while self._found and self._found[0][0] + self._hold_seconds < now:
            self._found.popleft()

    def pause_seconds(self, now: float) -> float:
        """Return for how long holds of an earlier process, whose keys are unknown, may still be there."""
        return max(self._earlier_end_at - now, 0)

    def keys(self) -> list[str]:
        """Return all keys, each once."""
        return list(dict.fromkeys(key for _, keys in self._found for key in keys))


class InvalidationSink(Sink):
    """Sink that sends invalidations to the cache, or to a topic."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        address: Address,
        templates: Mapping[str, Template] | None = None,
        *,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """`read_topic` returns all records of a topic; the default reads Kafka. Raises JobError."""
        self._session = session
        self._topics = topics
        self._address = address
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._plan = Plan(dict(templates or {}), {})
        self._with_rows = sorted(space for space, template in self._plan.templates.items() if template.may_need_rows)
        self._topic = _topic_of(address.url)
        self._holds: RecentHolds | None = None
        if self._topic is None:
            cache = address.connect()
            if cache.loses_holds:
                self._holds = RecentHolds(address.hold_seconds, time.monotonic())
            cache.close()

    def write(self, records: DataFrame, batch: int, query: str) -> None:  # noqa: ARG002 - repeated invalidations do no harm
        """See `Sink.write`."""
        self._check_topic()
        control = [self._topics.control(name) for name in CacheInvalidation.control_topics]
        has_row = F.col("source.table").isin(*self._with_rows) if self._with_rows else F.lit(False)
        changes = parse(records, source_fields=(), control=control, names=self._topics.names).select(
            "op",
            "key",
            F.when(has_row, F.col("before")),
            F.when(has_row, F.col("after")),
            *("source.table", "source.space_id", "source.schema_version", "source.seq", "topic", "partition", "offset"),
        )
        report = self._invalidated(changes)
        while report.unknown:
            # Each worker ends at the first form that the plan lacks, so there may be further ones.
            self._reload_forms(report.unknown)
            report = self._invalidated(changes)
        if report.has_control:
            forms, ends = (control_topics.values(records.where(F.col("topic") == topic)) for topic in control)
            swept = control_topics.swept(ends, control[1], "space")
            gone = {space: seq for space, seq in swept.items() if seq > 0}
            for space, seq in self._moved(forms).items():
                gone[space] = max(seq, gone.get(space, -1))
            for space in self._topics.chosen(self._session, gone):
                report.truncated[space] = max(gone[space], report.truncated.get(space, -1))
        if self._holds is not None:
            self._holds.add(report.held, time.monotonic())
        if report.truncated:
            self._empty(report.truncated)
        give_up(self.dead_letters, self._session, records, report.refused)

    def _check_topic(self) -> None:
        """Raise JobError if the invalidations would be written to one of the daemon's own topics, among its events."""
        owner = self._topics.known.owner
        control = {f"{self._topics.prefix}.{name}" for name in (*CONTROL_TOPICS, *OPTIONAL_TOPICS)}
        own = control if owner is None else control | owner.topics
        # Of a fleet's table no owner is known, and each topic under the prefix may be one of a shard's.
        is_fleets = not self._topics.bootstrap_servers and (self._topic or "").startswith(f"{self._topics.prefix}.")
        if self._topic in own or is_fleets:
            raise JobError(f"--to {self._address.shown}: {self._topic} is a topic of the daemon itself. Choose another one.")

    def _moved(self, records: list[str]) -> dict[str, int]:
        """Return the spaces whose rows have got another name or another primary key with these records of the schema topic.

        Each comes with the seq before the change. No event names the keys that have other rows, or none, since then: two spaces
        may have swapped their names.
        """
        if not records:
            return {}
        topic = self._topics.control("schema")
        told = {form.point for history in Forms(topic, records).histories() for form in history}
        forms = Forms(topic, [*control_topics.values(self._read_topic(topic)), *records])
        found: dict[str, int] = {}
        for former, form in chain.from_iterable(forms.identity_changes()):
            if form.point in told:
                found |= {space: max(form.seq, found.get(space, -1)) for space in (former.space, form.space)}
        return found

    def _invalidated(self, changes: DataFrame) -> Report:
        """Let the workers invalidate the keys of a batch, and return their merged report."""
        whole = Report()
        if self._topic is None:
            for report in changes.rdd.mapPartitions(_CacheWorker(self._address, self._plan)).collect():
                whole.merge(report)
            return whole
        found = self._session.createDataFrame(changes.rdd.mapPartitions(_TopicWorker(self._plan)), _FOUND_SCHEMA)
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._send(found.where("report is null"))
            for row in found.where("report is not null").collect():
                whole.merge(_report_of(row["report"]))
        finally:
            found.unpersist()
        return whole

    def _send(self, found: DataFrame) -> None:
        """Write to the topic, with the Kafka options that the job reads with."""
        options = {name: value for name, value in self._topics.kafka_options.items() if name.startswith("kafka.")}
        servers = urlsplit(self._address.url).netloc
        writer = found.select("key", "value").write.format("kafka").options(**options)
        writer.option("kafka.bootstrap.servers", servers).option("topic", self._topic).save()

    def _empty(self, truncated: Mapping[str, int]) -> None:
        if self._topic is not None:
            found = [
                (None, _invalidation_record(Stale(self._plan.template(space).glob, space, "t", seq)), None)
                for space, seq in truncated.items()
            ]
            self._send(self._session.createDataFrame(found, _FOUND_SCHEMA))
            return
        cache = self._address.connect()
        if self._holds is not None:
            time.sleep(self._holds.pause_seconds(time.monotonic()))
        try:
            for space in truncated:
                cache.empty(self._plan.template(space))
            if self._holds is not None:
                cache.invalidate(self._holds.keys())
        finally:
            cache.close()

    def _reload_forms(self, wanted: Iterable[Version]) -> None:
        """Read the field names of forms."""
        topic = self._topics.control("schema")
        forms = Forms(topic, control_topics.values(self._read_topic(topic)))
        found = {
            (form.space_id, form.schema_version): tuple(one.name for one in form.fields)
            for history in forms.histories()
            for form in history
        }
        lost = frozenset((*self._plan.lost, *wanted)) - found.keys()
        self._plan = Plan(self._plan.templates, found, lost)


class Invalidations:
    """The cache's keys that changes make stale; everything else goes into a report. Pure."""

    def __init__(self, changes: Iterable[Row], plan: Plan, report: Report) -> None:
        """Nothing is read until the iteration."""
        self._changes = changes
        self._plan = plan
        self._report = report
        self._places: dict[Version, Mapping[str, int | None]] = {}

    def __iter__(self) -> Iterator[Stale]:
        """Yield stale keys in the order of the changes, up to the first change with an unknown form."""
        report = self._report
        templates: dict[str, Template] = {}
        for op, key, before, after, space, space_id, form, seq, *place in self._changes:
            if op == CONTROL:
                report.has_control = True
                continue
            if op == "t":
                report.truncated[space] = max(seq, report.truncated.get(space, -1))
                continue
            template = templates.get(space)
            if template is None:
                template = templates[space] = self._plan.template(space)
            found: set[str] | Trouble
            members = _members(key)
            if members is None:
                found = Trouble(f"the record's key {key[:200]!r} isn't JSON. {_SKIP}")
            elif not (template.may_need_rows and template.lacks(members)):
                found = stale_keys(template, members)
            elif (space_id, form) not in self._plan.names and (space_id, form) not in self._plan.lost:
                report.unknown.add((space_id, form))
                return
            else:
                found = self._keys_of_rows(template, members, (space_id, form), op, before, after)
            if isinstance(found, Trouble):
                report.refused.append(Refused(Place(*place), f"{where(Place(*place))}: {found.sentence}"))
                continue
            for stale in found:
                yield Stale(stale, space, op, seq)

    def _keys_of_rows(
        self, template: Template, key: Mapping[str, Any], version: Version, op: str, before: str | None, after: str | None
    ) -> set[str] | Trouble:
        """Return the keys of a change whose primary key lacks fields of the template."""
        if op in ("u", "d") and before is None:
            return Trouble(
                f"the template {template.text!r} names {template.lacks(key)[0]!r}, which isn't in the key, and the event has no "
                'row before. Give the space images (state.images = "full"), or name fields of the key alone in --key'
            )
        rows = [None if text is None else _members(text) for text in (before, after)]
        if any(row is None and text is not None for row, text in zip(rows, (before, after), strict=True)):
            return Trouble(f"a row of the change isn't JSON. {_SKIP}")
        there = [row for row in rows if row is not None]
        elsewhere = self._places_of(template, version, there)
        renamed = {name: place for name, place in elsewhere.items() if place is not None}
        if len(renamed) < len(elsewhere):
            strange = next(name for name in elsewhere if name not in renamed)
            known = (self._plan.forms(version[0]) or [_names_in(there)])[-1]
            return Trouble(
                f"the template {template.text!r} names {strange!r}, which no form of the space has; its fields are"
                f" {', '.join(known)}. Name one of these in --key"
            )
        return stale_keys(template, key, [with_names(row, renamed) for row in there])

    def _places_of(self, template: Template, version: Version, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, int | None]:
        """Return the places of the template's fields that this form doesn't name; if it is lost, its rows tell its names."""
        if version in self._plan.lost:
            return places(template.lacks({}), _names_in(rows), self._plan.forms(version[0]))
        if version not in self._places:
            self._places[version] = places(template.lacks({}), self._plan.names[version], self._plan.forms(version[0]))
        return self._places[version]


def _names_in(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the fields that rows of one form have: those of the longest row."""
    return max((tuple(row) for row in rows), key=len, default=())


def chunks(found: Iterable[Stale]) -> Iterator[list[Stale]]:
    """Group invalidations into lists of at most some thousands, each key once, with its newest change."""
    chunk: dict[str, Stale] = {}
    for stale in found:
        known = chunk.get(stale.key)
        if known is None or known.seq < stale.seq:
            chunk[stale.key] = stale
        if len(chunk) >= _CHUNK:
            yield list(chunk.values())
            chunk = {}
    if chunk:
        yield list(chunk.values())


class _CacheWorker:
    """Function that Spark's workers run on a partition's changes to invalidate them in the cache."""

    def __init__(self, address: Address, plan: Plan) -> None:
        self._address = address
        self._plan = plan

    def __call__(self, changes: Iterable[Row]) -> Iterator[Report]:
        report = Report()
        cache = self._address.connect()
        # One request is in transit while the next one is prepared.
        with ThreadPoolExecutor(1) as thread:
            pending: Future[None] | None = None
            for chunk in chunks(Invalidations(changes, self._plan, report)):
                keys = [stale.key for stale in chunk]
                following = thread.submit(cache.invalidate, keys)
                if cache.loses_holds:
                    report.held += keys
                if pending is not None:
                    pending.result()
                pending = following
            if pending is not None:
                pending.result()
        cache.close()
        yield report


class _TopicWorker:
    """Function that Spark's workers run on a partition's changes to make records for the topic."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, changes: Iterable[Row]) -> Iterator[tuple[str | None, str | None, str | None]]:
        report = Report()
        for chunk in chunks(Invalidations(changes, self._plan, report)):
            for stale in chunk:
                yield stale.key, _invalidation_record(stale), None
        yield None, None, _text_of(report)


def _invalidation_record(stale: Stale) -> str:
    return json_text.render({"space": stale.space, "key": stale.key, "op": stale.op, "seq": stale.seq})


def _text_of(report: Report) -> str:
    refused = [[list(one.place), one.sentence] for one in report.refused]
    unknown = [list(version) for version in report.unknown]
    return json.dumps([refused, report.truncated, unknown, report.has_control])


def _report_of(text: str) -> Report:
    refused, truncated, unknown, has_control = json.loads(text)
    return Report(
        [Refused(Place(*place), sentence) for place, sentence in refused],
        truncated,
        {(space_id, version) for space_id, version in unknown},
        has_control,
    )


def _members(text: str) -> dict[str, Any] | None:
    """Return the members of a JSON object; None if the text isn't JSON, of which `envelope.parse` has checked only the ends."""
    try:
        members: dict[str, Any] = json_text.parse(text)
    except ValueError:
        return None
    return members


def _topic_of(url: str) -> str | None:
    """Return the topic of kafka://HOST:PORT/TOPIC, or None for another URL. Raises JobError."""
    parts = urlsplit(url)
    if parts.scheme != "kafka":
        return None
    topic = parts.path.removeprefix("/")
    if not topic or not parts.netloc:
        raise JobError(f"--to {url} names no topic: write kafka://HOST:PORT/TOPIC.")
    return topic


def _template(text: str) -> tuple[str, Template]:
    space, separator, template = text.partition("=")
    if not separator or not space:
        raise argparse.ArgumentTypeError(f"{text!r} isn't SPACE=TEMPLATE")
    try:
        return space, Template.parsed(template).of(space)
    except JobError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
