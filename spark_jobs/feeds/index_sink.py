"""Sink of the job `search_index`: rows become documents (documents.py describes them).

Workers write the documents of their partitions, each with its `seq` as an external version, so repeated, late or reordered events
don't overwrite anything newer. The driver changes the indexes themselves, in steps that may be repeated. It creates an index from
the space's form before its first document, adds mappings of new fields, raises the index's floor after a truncation, moves the
alias when a space is renamed, and renames fields in documents.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import control_topics
from spark_jobs.contract.envelope import CONTROL, parse
from spark_jobs.contract.forms import Form, Forms, Version
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds import documents
from spark_jobs.feeds.bulk import Action, IndexRefusedError, Place, Refused, chunks, where
from spark_jobs.feeds.index_metas import IndexMetas
from spark_jobs.feeds.index_plan import Aliases, index_body, missing_properties, wanted_limit
from spark_jobs.feeds.made_indexes import MadeIndexes, NoNotes, Noted
from spark_jobs.feeds.opensearch import FIELDS_SETTING, Address, Index, Indexes, Writer, sender
from spark_jobs.feeds.records import give_up
from spark_jobs.feeds.removal import Removals
from spark_jobs.runner.job import Sink

CONTROL_TOPICS: Final = ("schema", "snapshot")

_FORGET_EVERY_SECONDS: Final = 3600
_NEVER: Final = -1
_KEPT_APART: Final = "With --on-error dead-letter the job keeps the space's records apart, and indexes the other spaces"


@dataclass(frozen=True)
class Writing:
    """Parameters of the writing of documents.

    `table` is the id of the fleet's table whose numbers are the documents' versions; None if they are a daemon's `seq`s.
    """

    address: Address
    document: str | None = None
    count_max: int = 1000
    bytes_max: int = 5_000_000
    patience_seconds: float = 300
    table: str | None = None


@dataclass(frozen=True)
class Target:
    """Destination of a space's documents.

    `alias` is the alias to write to, `floor` the seq of the last truncation, `form` the latest schema_version, and `labels` has
    the latest names for fields of older forms, by schema_version.
    """

    alias: str
    floor: int
    form: int
    labels: Mapping[int, Sequence[str]]


@dataclass(frozen=True)
class Plan:
    """Data that the workers need: targets and troubles by space_id, and the `known` forms, among them lost ones.

    A space with known forms and without a target is dropped or not chosen, and its changes are passed over.

    `troubles` has a sentence for each space that OpenSearch can't take, or of which the schema topic has no form at all; its
    events are refused.
    """

    targets: Mapping[int, Target]
    known: frozenset[Version]
    troubles: Mapping[int, str] = field(default_factory=dict)


@dataclass
class Report:
    """Report of one worker, or of all workers, about a batch."""

    refused: list[Refused] = field(default_factory=list)
    truncated: dict[int, int] = field(default_factory=dict)
    unknown: set[Version] = field(default_factory=set)
    """Forms that the plan lacks; if there are any, the batch isn't completely written."""
    has_control: bool = False

    def merge(self, other: Report) -> None:
        """Merge another report into this one."""
        self.refused += other.refused
        for space_id, seq in other.truncated.items():
            self.truncated[space_id] = max(seq, self.truncated.get(space_id, _NEVER))
        self.unknown |= other.unknown
        self.has_control |= other.has_control


class Change(NamedTuple):
    """Second argument of a user's function, beside the row."""

    space: str
    key: Mapping[str, Any]
    seq: int


COLUMNS: Final[Mapping[str, Column | str]] = {
    "op": "op",
    "key": "key",
    "row": "after",
    "space": "source.table",
    "space_id": "source.space_id",
    "seq": "source.seq",
    "form": "source.schema_version",
    "is_patch": "patch is not null",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
}
"""Columns of a change that the workers get."""


class SearchIndexSink(Sink):
    """Sink that writes batches to OpenSearch."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        writing: Writing,
        *,
        template: str = "{prefix}-{space}",
        body: Mapping[str, Any] | None = None,
        forget_after_hours: float = 24,
        notes: Noted | None = None,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """`notes` are those of the checkpoint. `read_topic` returns all records of a topic; the default reads Kafka."""
        self._session = session
        self._topics = topics
        self._writing = writing
        self._template = template
        self._body = body or {}
        self._forget_after_ms = int(forget_after_hours * 3_600_000)
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._client = writing.address.connect()
        self._indexes = Indexes(self._client, writing.patience_seconds)
        self._made = MadeIndexes(notes or NoNotes())
        self._removals = Removals(writing.address, writing.patience_seconds)
        self._is_first_batch = True
        self._metas = IndexMetas(self._indexes, topics.prefix)
        self._plan: Plan | None = None
        self._forms = Forms(topics.control("schema"), ())
        self._lost: set[Version] = set()
        self._forgotten_at: float | None = None

    def write(self, records: DataFrame, batch: int, query: str) -> None:  # noqa: ARG002 - versions make repeats harmless
        """See `Sink.write`."""
        self._is_first_batch = batch == 0
        try:
            self._write(records)
        except IndexRefusedError as refusal:
            raise JobError(str(refusal)) from refusal

    def _write(self, records: DataFrame) -> None:
        control = [self._topics.control(name) for name in CONTROL_TOPICS]
        changes = parse(records, source_fields=(), control=control, names=self._topics.names).select(
            *(F.expr(str(expression)).alias(name) for name, expression in COLUMNS.items())
        )
        report = self._completely_written(changes, self._plan or self._reload_forms())
        if report.has_control:
            assert self._plan is not None
            former, plan = self._plan, self._reload_forms()
            if former.troubles.keys() - plan.troubles.keys():
                # This batch has brought a form that was missing, so what it has of that space isn't kept apart.
                report = self._completely_written(changes, plan)
            snapshots = self._topics.control("snapshot")
            swept = control_topics.swept(control_topics.values(self._read_topic(snapshots)), snapshots, "space_id")
            for space_id, seq in swept.items():
                if seq > 0:
                    report.truncated[space_id] = max(seq, report.truncated.get(space_id, _NEVER))
        for space_id, seq in report.truncated.items():
            self._raise_floor(space_id, seq)
        give_up(self.dead_letters, self._session, records, report.refused)
        self._forget()

    def finish(self) -> int:
        """See `Sink.finish`."""
        self._removals.finish()
        return 0

    def check(self) -> None:
        """See `Sink.check`."""
        self._removals.check()

    def close(self) -> None:
        """See `Sink.close`."""
        self._removals.close()
        self._client.close()

    def _completely_written(self, changes: DataFrame, plan: Plan) -> Report:
        """Write a batch, also events of forms that the plan lacks, and return the workers' merged report."""
        report = self._written(changes, plan)
        while report.unknown:
            # Each worker ends at the first form that the plan lacks, so there may be further ones.
            report = self._written(changes, self._reload_forms(report.unknown))
        return report

    def _written(self, changes: DataFrame, plan: Plan) -> Report:
        """Let the workers write a batch, and return their merged report."""
        worker = _Worker(self._writing, plan)
        whole = Report()
        for report in changes.rdd.mapPartitions(worker).collect():
            whole.merge(report)
        return whole

    def _reload_forms(self, needed: Collection[Version] = ()) -> Plan:
        """Read the schema topic, and update indexes, mappings and aliases accordingly.

        Of the forms that events name (`needed`), retention may have removed some from the topic. A row has its fields in their
        places, whatever their names were, so the latest form has the names for such a row.
        """
        topic = self._topics.control("schema")
        self._forms = Forms(topic, control_topics.values(self._read_topic(topic)))
        alive = set(self._forms.alive())
        chosen = self._topics.chosen(self._session, alive)
        histories = {history[-1].space_id: history for history in self._forms.histories()}
        wanted = {
            space_id: history
            for space_id, history in histories.items()
            if history[-1].space in chosen and self._forms.latest(history[-1].space) == history[-1]
        }
        names = {space_id: self._index(space_id) for space_id in histories}
        found = self._metas.describe(names.values())
        wanted_names = {space_id: names[space_id] for space_id in wanted}
        self._made.check(wanted_names, found, is_first=self._is_first_batch)
        aliases, troubles = Aliases(names.values()), {}
        for space_id, history in sorted(wanted.items()):
            try:
                alias = documents.alias_name(self._template, self._topics.prefix, history[-1].space)
                self._prepare(history, alias, found.get(names[space_id]))
                aliases.want(alias, names[space_id], history[-1].space)
            except IndexRefusedError as refusal:
                troubles[space_id] = self._trouble(history[-1], str(refusal))
        found = self._metas.describe(names.values())
        ready = {space_id: history for space_id, history in wanted.items() if space_id not in troubles}
        self._made.note({space_id: names[space_id] for space_id in ready}, found)
        others = {space_id: history for space_id, history in histories.items() if space_id not in ready}
        self._indexes.change_aliases(aliases.changes(found, keeps=self._kept(others, alive)))
        known = frozenset((form.space_id, form.schema_version) for history in histories.values() for form in history)
        self._lost = {version for version in (*self._lost, *needed) if version not in known}
        for space_id, version in sorted(self._lost):
            if space_id not in histories:
                troubles[space_id] = f"{self._forms.lost(space_id, version)}, nor any other of this space. {_KEPT_APART}"
        labels = {space_id: self._labels(history, found[names[space_id]]) for space_id, history in ready.items()}
        targets = {
            space_id: Target(
                documents.write_alias(names[space_id]),
                found[names[space_id]].meta["floor"],
                history[-1].schema_version,
                self._latest_names(history, labels[space_id][history[-1].schema_version]),
            )
            for space_id, history in ready.items()
        }
        self._plan = Plan(targets, known | self._lost, troubles)
        for space_id, history in ready.items():
            self._relabel(names[space_id], targets[space_id], history, labels[space_id])
        return self._plan

    def _kept(self, histories: Mapping[int, Sequence[Form]], alive: Collection[str]) -> dict[str, str | None]:
        """Return the aliases to keep in indexes of spaces that the job doesn't index: index → its alias, None for all.

        Searches for a dropped space find nothing, instead of failing. Another job may index a space that this one doesn't read.
        """
        kept: dict[str, str | None] = {}
        for space_id, history in histories.items():
            alias = None
            if history[-1].space in alive:
                with contextlib.suppress(IndexRefusedError):
                    alias = documents.alias_name(self._template, self._topics.prefix, history[-1].space)
            kept[self._index(space_id)] = alias
        return kept

    @staticmethod
    def _trouble(form: Form, why: str) -> str:
        return (
            f"the rows of space {form.space!r} can't be indexed: {why.rstrip('.')}. Correct this and start the job again; or "
            "leave the space out (--spaces); with --on-error dead-letter the job keeps its records apart and indexes the other "
            "spaces"
        )

    def _index(self, space_id: int) -> str:
        return documents.index_name(self._template, self._topics.prefix, space_id)

    def _labels(self, history: Sequence[Form], index: Index) -> dict[int, tuple[str, ...]]:
        """Return the names in documents of each form's fields, by schema_version.

        A user's function gets the fields' own names.
        """
        if self._writing.document:
            return {form.schema_version: tuple(one.name for one in form.fields) for form in history}
        return {form.schema_version: documents.names_of(form, index.properties) for form in history}

    def _latest_names(self, history: Sequence[Form], names: Sequence[str]) -> dict[int, tuple[str, ...]]:
        """Return the names for rows of older forms, by schema_version; those of lost forms may have had any names."""
        lost = {version: tuple(names) for space_id, version in self._lost if space_id == history[-1].space_id}
        return documents.labels(history, names) | lost

    def _prepare(self, history: Sequence[Form], alias: str, index: Index | None) -> None:
        """Create or update an index with all fields of the latest form. Its metadata has the aliases that this job created.

        Raises IndexRefusedError.
        """
        form = history[-1]
        name = self._index(form.space_id)
        there = index.properties if index is not None else self._body.get("mappings", {}).get("properties", {})
        if self._writing.document:
            properties = documents.meta_properties()
        else:
            properties = documents.properties(form, documents.names_of(form, there))
        if index is None:
            meta = {"prefix": self._topics.prefix, "space_id": form.space_id, "floor": _NEVER, "aliases": [alias]}
            if self._writing.table is not None:
                meta["table"] = self._writing.table
            made = index_body(properties, meta, documents.write_alias(name), self._body, is_dynamic=bool(self._writing.document))
            self._indexes.create(name, made)
            return
        self._check_numbers(index)
        change: dict[str, Any] = {}
        if missing := missing_properties(properties, index.properties):
            change["properties"] = missing
        if missing and (limit := wanted_limit({**index.properties, **missing})) > index.fields_max:
            self._indexes.put_settings(name, {FIELDS_SETTING: limit})
        if alias not in index.meta["aliases"]:
            self._metas.put(index, {**index.meta, "aliases": [*index.meta["aliases"], alias]}, **change)
        elif change:
            self._indexes.put_mapping(name, change)

    def _check_numbers(self, index: Index) -> None:
        """Raise JobError if the versions of an index's documents are other numbers than this job's."""
        owner = index.meta.get("prefix")
        if owner != self._topics.prefix:
            held = "isn't one of this job's" if owner is None else f"holds the rows of {owner!r}"
            raise JobError(
                f"The index {index.name} {held}, and seq of {self._topics.prefix!r} says nothing there. Choose another --index, "
                "or remove the index."
            )
        if index.meta.get("table") != self._writing.table:
            # Each table of a fleet numbers the events by itself, in an order of its own.
            raise JobError(
                f"The documents of the index {index.name} have the numbers of another table of changes, or of a daemon, as their "
                "versions. With this job's numbers older rows would stay, as if they were newer. Remove the index, or choose "
                "another --index, and start the job with a new --checkpoint."
            )

    def _relabel(self, name: str, target: Target, history: Sequence[Form], labels: Mapping[int, Sequence[str]]) -> None:
        """Rename the fields of stored documents to the latest names, each under its own version, so that newer documents stay."""
        since = documents.renamed_since(history, labels)
        if since is None or self._writing.document:
            return
        names = labels[history[-1].schema_version]
        stale = self._indexes.matching(name, documents.labelled_before(since))
        actions = (
            Action(
                target.alias,
                identity,
                version,
                documents.relabelled_source(source, names, target.form),
                Place(self._topics.control("schema"), 0, 0),
                "external_gte",
            )
            for identity, version, source in stale
        )
        writer = self._writer()
        for chunk in chunks(actions, self._writing.count_max, self._writing.bytes_max):
            for refused in writer.write(chunk):
                raise JobError(f"A renamed field can't be renamed in the index: {refused.sentence}")

    def _writer(self) -> Writer:
        return Writer(sender(self._client), self._writing.patience_seconds)

    def _raise_floor(self, space_id: int, seq: int) -> None:
        """Remove all rows up to this seq: immediately from searches, and later from the index."""
        name = self._index(space_id)
        index = self._metas.describe([name]).get(name)
        if index is None or not self._metas.owns(index):
            return
        assert self._plan is not None
        known = index.meta["floor"]
        seq = max(seq, known)
        if (target := self._plan.targets.get(space_id)) is not None:
            self._plan = replace(self._plan, targets={**self._plan.targets, space_id: replace(target, floor=seq)})
        visible = documents.visible(seq)
        aliases = [alias for alias in index.meta.get("aliases", []) if alias in index.aliases]
        # A job that was killed in this method may have left an alias with an older floor.
        behind = [alias for alias in aliases if index.aliases[alias].get("filter") != visible]
        if known == seq and not behind:
            return
        if known < seq:
            self._metas.put(index, {**index.meta, "floor": seq})
        self._indexes.change_aliases([{"add": {"index": name, "alias": alias, "filter": visible}} for alias in behind])
        self._removals.ask(name, documents.write_alias(name), documents.expired(seq, 0))

    def _forget(self) -> None:
        now = time.monotonic()
        if self._forgotten_at is None or now - self._forgotten_at >= _FORGET_EVERY_SECONDS:
            assert self._plan is not None
            before = int(time.time() * 1000) - self._forget_after_ms
            for target in self._plan.targets.values():
                self._removals.ask(target.alias, target.alias, documents.expired(target.floor, before))
            self._forgotten_at = now


class _Worker:
    """Function that Spark's workers run on a partition's changes to write their documents."""

    def __init__(self, writing: Writing, plan: Plan) -> None:
        self._writing = writing
        self._plan = plan

    def __call__(self, changes: Iterable[Row]) -> Iterator[Report]:
        report = Report()
        function = None if self._writing.document is None else named_function(self._writing.document)
        client = self._writing.address.connect()
        writer = Writer(sender(client), self._writing.patience_seconds)
        actions = Actions(changes, self._plan, function, report, int(time.time() * 1000))
        # One request is in transit while the next one is prepared.
        with ThreadPoolExecutor(1) as thread:
            pending: Future[list[Refused]] | None = None
            for chunk in chunks(actions, self._writing.count_max, self._writing.bytes_max):
                following = thread.submit(writer.write, chunk)
                if pending is not None:
                    report.refused += pending.result()
                pending = following
            if pending is not None:
                report.refused += pending.result()
        client.close()
        yield report


class Actions:
    """The documents that changes require; everything else goes into a report. Pure."""

    def __init__(
        self,
        changes: Iterable[Row],
        plan: Plan,
        function: Callable[[dict[str, Any], Change], object] | None,
        report: Report,
        now_ms: int,
    ) -> None:
        """Nothing is read until the iteration."""
        self._changes = changes
        self._plan = plan
        self._function = function
        self._report = report
        self._now_ms = now_ms

    def __iter__(self) -> Iterator[Action]:
        """Yield actions in the order of the changes, up to the first change with an unknown form."""
        targets, known, report = self._plan.targets, self._plan.known, self._report
        for change in self._changes:
            op, key, row, space, space_id, seq, form, is_patch, *place = change
            if op == CONTROL:
                report.has_control = True
                continue
            if op == "t":
                report.truncated[space_id] = max(seq, report.truncated.get(space_id, _NEVER))
                continue
            if (space_id, form) not in known:
                report.unknown.add((space_id, form))
                return
            if space_id in self._plan.troubles:
                sentence = f"{where(Place(*place))}: {self._plan.troubles[space_id]}"
                report.refused.append(Refused(Place(*place), sentence))
                continue
            target = targets.get(space_id)
            if target is None or seq <= target.floor:
                continue
            if is_patch:
                report.refused.append(
                    Refused(
                        Place(*place),
                        f"{where(Place(*place))}: an UPDATE of {space!r} comes without its row, which a document is made of. "
                        'Give the space images (state.images = "full"), or leave it out (--spaces)',
                    )
                )
                continue
            body = documents.mark(seq, target.form, self._now_ms) if row is None else None
            if body is None:
                try:
                    body = self._document(row, Change(space, key, seq), target, form)
                except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                    sentence = f"{where(Place(*place))}: no document can be made of the row: {_fault(error)}"
                    report.refused.append(Refused(Place(*place), sentence))
                    continue
            yield Action(target.alias, documents.document_id(key), seq, body, Place(*place))

    def _document(self, row: str, change: Change, target: Target, form: int) -> str:
        names = target.labels.get(form)
        if names is not None:
            row = documents.relabelled(row, names)
        if self._function is None:
            return documents.document(row, change.seq, target.form)
        made = self._function(json.loads(row), change._replace(key=json.loads(str(change.key))))
        if made is None:
            return documents.mark(change.seq, target.form, self._now_ms)
        return documents.of_function(made, change.seq, target.form)


def _fault(error: Exception) -> str:
    """Return what is wrong, and where, without the texts of other errors than this package's: they may quote the row."""
    if isinstance(error, JobError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name}, {Path(last.filename).name} line {last.lineno}"


def named_function(name: str) -> Callable[[dict[str, Any], Change], object]:
    """Return a user's function by its name. Raises JobError."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise JobError(f"--document {name}: {error}. It is MODULE:FUNCTION, found by Python here and on every worker.") from error
    if not callable(found):
        raise JobError(f"--document {name} isn't a function.")
    return found  # type: ignore[no-any-return]
