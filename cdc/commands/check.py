"""`tarantool-cdc check`: finds out what would happen at start, without changing anything.

The command connects to every member as the daemon would (cdc.commands.check_members). The results go through the daemon's own
decisions: first for each member alone, then for the choice among all. In Kafka, the command reads the
checkpoint as any consumer could, and tries each right that the daemon needs (cdc.kafka.rights). It takes no transactional id,
so a running daemon isn't disturbed. The command reads a state store that no daemon has open; of an open one it assumes that it
is at the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from cdc.commands import Say, check_start
from cdc.commands.asked import as_it_is_asked
from cdc.commands.check_members import Examined, Tell, choose_member, examine_member
from cdc.commands.check_start import Finding
from cdc.config import Config
from cdc.config.fleet import Fleet
from cdc.daemon import admission
from cdc.daemon.admission import StateDirectoryLock
from cdc.daemon.standby import check_possible
from cdc.daemon.start import formats_of, options_of, supposed_before
from cdc.errors import CdcError, ConfigurationError, Remedy
from cdc.events.routes import check_routes
from cdc.events.row_route import check_rows
from cdc.formats.names import check_names
from cdc.kafka import checkpoint_topic, rights, topic_settings
from cdc.kafka.clients import KafkaClients
from cdc.kafka.names import names_of
from cdc.kafka.topic_admin import cluster_id, list_topics
from cdc.kafka.topic_settings import KEPT
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.schema.fitting import check_types
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import is_keyable
from cdc.schema.tracker import SchemaTracker
from cdc.store import numbers_file
from cdc.stream.commits import ownership
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.reports import sharding
from cdc.upstream import start
from cdc.upstream.start import Known
from cdc.upstream.witnesses import Witnesses


@dataclass(slots=True)
class Examination:
    """What was found out about a configuration and everything that it names."""

    findings: list[Finding] = field(default_factory=list)
    failures: list[Remedy] = field(default_factory=list)
    """The remedy of each failure."""
    stored: Checkpoint = field(default_factory=Checkpoint)
    existing: dict[str, int] | None = None
    """Partition counts of all topics; None if Kafka doesn't answer."""
    known: Known | None = None
    members: list[Examined] = field(default_factory=list)
    runs_already: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether the daemon runs, and is frozen or stuck."""
        return any(finding.is_silence for finding in self.findings)


def check(config: Config, say: Say) -> bool:
    """Report the findings, line by line. Return whether the daemon could start, or is running.

    Raises ConfigurationError if a secret's file can't be read, before anything connects.
    """
    found = examine(config, lambda line: say(str(line)))
    count = len(found.failures)
    if found.is_silent:
        say(f"the daemon runs, and stands still: {count} failure{'s' if count > 1 else ''}")
    elif count:
        loses_rows = count == sum(finding.is_failure and finding.loses_rows for finding in found.findings)
        stops = "stop" if Remedy.OPERATOR in found.failures else "wait until that is over"
        outcome = "start, and consumers would lose rows" if loses_rows else stops
        is_of_running = count == sum(finding.is_of_running for finding in found.findings)
        would = "the daemon runs" if is_of_running else f"run would {outcome}"
        say(f"{would}: {count} failure{'s' if count > 1 else ''}")
    else:
        say("the daemon runs" if found.runs_already else "run would start")
    return not count


def examine(config: Config, tell: Tell) -> Examination:
    """Find out what would happen at start. Each finding, and each fact, is told as soon as it is known.

    Raises ConfigurationError if a secret's file can't be read, before anything connects.
    """
    result = Examination()

    def say(line: str | Finding) -> None:
        if isinstance(line, Finding):
            result.findings.append(line)
        tell(line)

    config.columns.secret()
    standby = _Check(say, "standby")
    if config.standby:
        standby.attempt(lambda: check_possible(config), None)
    kafka = _Check(say, "kafka")
    stored, existing, witnesses = kafka.attempt(lambda: _read_checkpoint(config), (Checkpoint(), None, Witnesses()))
    position = stored.position
    findings: list[Finding] = []
    in_store, of_store = check_start.of_store(config)
    if kafka.is_good:
        say(f"kafka: {config.kafka.bootstrap_servers} answers, {_progress(position)}")
        findings += check_start.of_kafka(config, stored, in_store.position if in_store is not None else None)
        names = [names_of(config.kafka).control(control) for control in KEPT]
        admin = KafkaClients(config.name, config.kafka).admin()
        findings += check_start.of_cluster(config, stored, admin, cluster_id(admin, config.kafka.bootstrap_servers))
        settings = topic_settings.read(admin, [name for name in names if name in existing])
        findings += check_start.of_settings(config, settings)
    keys = {finding.key for finding in findings if finding.is_failure}
    findings += check_start.of_registry(config)
    findings += check_start.of_state_path(config, stored, is_running=any(finding.key == "name" for finding in findings))
    findings += of_store
    findings += check_start.of_lost_forms(config, stored, in_store)
    judged = _Check(say, "state.path")
    known = judged.attempt(lambda: _known(config, stored, in_store, witnesses), None) if kafka.is_good else None
    is_first = checkpoint_topic.name_of(config.kafka.control_prefix) not in keys
    found = [examine_member(config, member, stored, known, say, is_first=is_first) for member in config.source.members()]
    schema = next((member.contents.schema for member in found if member.contents is not None), None)
    if schema is not None:
        findings += _published(config, schema, existing, stored, say, is_ours=keys.isdisjoint({"kafka.topic_prefix"}))
        spaces = [(form.space_id, form.name) for form in schema.forms() if form.is_replicated]
        findings += check_start.of_patterns(config, spaces)
        called = next(member.contents.replicaset_name for member in found if member.contents is not None)
        findings += check_start.of_replicaset_name(config, called)
    candidates = [member.candidate for member in found]
    ballots = [candidate.answer.ballot for candidate in candidates]
    findings += check_start.of_joins(config, [ballot for ballot in ballots if ballot is not None])
    failures = [*standby.failures, *kafka.failures, *judged.failures, *(Remedy.OPERATOR for member in found if member.stops_run)]
    # If all members are unusable, none would be followed, and each has reported why.
    if known is not None and not all(member.stops_run for member in found):
        failures += choose_member(config, candidates, known, say)
    elif not any(member.contents for member in found):
        errors = [candidate.no_snapshot or candidate.answer.error for candidate in candidates]
        remedies = [error.remedy for error in errors if error is not None]
        failures.append(Remedy.WAIT if Remedy.WAIT in remedies else Remedy.OPERATOR)
    for finding in findings:
        say(finding)
        if finding.is_failure:
            failures.append(Remedy.WAIT if finding.may_heal else Remedy.OPERATOR)
    result.failures, result.stored, result.known, result.members = failures, stored, known, found
    result.existing = existing
    result.runs_already = check_start.runs_already(config, stored) or check_start.is_its_standby(config, stored)
    return result


def check_fleet(fleet: Fleet, say: Say) -> bool:
    """Report the findings about each shard's daemon. Return whether all could start, or are running."""
    are_well = []
    for name, config in fleet.shards.items():
        say(f"shard {name}:")
        are_well.append(check(as_it_is_asked(config), lambda line: say(f"  {line}")))
    bad = [name for name, is_well in zip(fleet.shards, are_well, strict=True) if not is_well]
    outcome = f"failures in {', '.join(bad)}" if bad else f"no failure in {len(are_well)} shards"
    say(f"the fleet {fleet.name}: {outcome}")
    return not bad


def _progress(position: Position | None) -> str:
    """Return a description of the daemon's progress."""
    if position is None:
        return "there is no checkpoint yet"
    if position.snapshot is None:
        return "this daemon has started before, and has published nothing yet"
    return f"the checkpoint is at {position.vclock}"


def _known(config: Config, stored: Checkpoint, in_store: Checkpoint | None, witnesses: Witnesses) -> Known:
    """Return the facts with which a first connection would begin. Raises StateForeignError, and PositionError."""
    former = StateDirectoryLock.writers_in(admission.store_path(config))
    is_store_ours = admission.is_store_ours(config, stored, former)
    known = supposed_before(config, stored, in_store, is_store_ours=is_store_ours, witnesses=witnesses)
    start.check_store(known)
    return known


class _Check:
    """One part of the check. Its errors are findings, and don't end the check."""

    def __init__(self, say: Tell, subject: str) -> None:
        self._say = say
        self._subject = subject
        self.failures: list[Remedy] = []

    @property
    def is_good(self) -> bool:
        return not self.failures

    def attempt(self, look: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return look()
        except CdcError as error:
            self.failures.append(error.remedy)
            self._say(Finding(self._subject, str(error), may_heal=error.remedy is Remedy.WAIT))
            return otherwise


def _read_checkpoint(config: Config) -> tuple[Checkpoint, dict[str, int], Witnesses]:
    """Return the checkpoint, the partition counts of all topics, and what else remembers given numbers."""
    kafka = config.kafka
    clients = KafkaClients(config.name, kafka)
    existing = list_topics(clients.admin(), kafka.bootstrap_servers)
    lacking = rights.missing(config.name, kafka, clients, existing)
    if lacking:
        raise rights.refusal(lacking, kafka)
    # Read before the checkpoint, which a running daemon moves: so they can't be ahead of it, unless it was thrown back.
    kept = numbers_file.read(config.state.path, config.name, kafka.control_prefix)
    is_exact = "at_least_once" not in (kafka.delivery, kept.delivery)
    newest = admission.newest_numbers(config) if is_exact else Numbers()
    stored = admission.read(config)
    witnesses = Witnesses(kept=kept, topics=newest, others=stored.others)
    if ownership.owner(stored) not in (None, config.name):
        witnesses = Witnesses(kept=kept)  # the events are another daemon's
    return stored, existing, witnesses


def _published(
    config: Config,
    schema: SchemaTracker,
    existing: dict[str, int] | None,
    stored: Checkpoint,
    say: Tell,
    *,
    is_ours: bool = True,
) -> Iterator[Finding]:
    """Report a line for each published space.

    Yield findings about spaces without a topic of their own, and about missing topics.
    """
    options = options_of(config)
    is_published = options.space_filter()
    names = names_of(config.kafka)
    names.reserve(config.kafka.optional_topics)
    wanted = []
    with_topics = []
    routes = options.routes()
    published = [
        replace(form, routing=routes.of(form.name))
        for form in schema.forms()
        if is_published(form.space_id, form.name) and form.is_replicated
    ]

    def has_images(form: SpaceForm) -> bool:
        return config.state.images != "none" and (config.state.images == "source" or is_keyable(form))

    try:
        check_names(published, formats_of(config))
        check_routes(published)
        check_rows(published, has_images)
    except ConfigurationError as error:
        yield Finding("spaces", str(error))
    for form in published:
        try:
            if config.state.images == "full":
                check_types(form)
            wanted.append(names.of_space(form.space_id, form.name, form.routing))
            with_topics.append((form, wanted[-1]))
            say(_published_space(form, wanted[-1], existing, creates=config.kafka.create_topics))
        except ConfigurationError as error:
            yield Finding("spaces", str(error))
    yield from check_start.of_schemas(config, with_topics, has_images=has_images)
    yield from check_start.of_columns(options.columns(), published)
    yield from check_start.of_filters(config, published)
    yield from (
        Finding("fleet.topics", doubt.sentence, is_failure=doubt.loses_rows, loses_rows=doubt.loses_rows)
        for doubt in sharding.doubts_about(options, schema, published)
    )
    yield from (Finding("routing", sentence, is_failure=False) for sentence in routes.without_effect(published))
    if existing is not None:
        yield from check_start.of_foreign_topics(config, wanted, existing, stored)
        admin = KafkaClients(config.name, config.kafka).admin()
        yield from check_start.of_limits(config, topic_settings.read(admin, [topic for topic in wanted if topic in existing]))
        yield from check_start.of_missing_topics(config, wanted, existing)
        yield from check_start.of_signal_topic(config, existing)
        yield from check_start.of_deleted_topics(config, wanted, existing, stored, is_ours=is_ours)


def _published_space(form: SpaceForm, topic: str, existing: dict[str, int] | None, *, creates: bool) -> str:
    if existing is None:
        state = "Kafka doesn't say whether it exists"
    else:
        count = existing.get(topic)
        state = ("to be created" if creates else "missing") if count is None else f"{count} partition{'s' if count > 1 else ''}"
    synchronous = "; synchronous: its changes are published when a quorum has them" if form.is_sync else ""
    return f"{form.name} (space id {form.space_id}) to {topic} ({state}){synchronous}"
