"""`tarantool-cdc check`: finds out what would happen at start, without changing anything.

The command connects to every member as the daemon would, asks for the ballot, and begins a FETCH_SNAPSHOT that it interrupts
after the system spaces. That proves the right to replicate, and shows the spaces and the user's rights. The results go through
the daemon's own decisions: first for each member alone, then for the choice among all. In Kafka, the command reads the
checkpoint as any consumer could, and tries each right that the daemon needs (cdc.kafka.rights). It takes no transactional id,
so a running daemon isn't disturbed. The command reads a state store that no daemon has open; of an open one it assumes that it
is at the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from cdc.commands import check_start
from cdc.commands.check_start import Finding
from cdc.config import Config, Member
from cdc.daemon import admission
from cdc.daemon.admission import StateDirectoryLock
from cdc.daemon.start import options_of, rules, supposed_before
from cdc.errors import CdcError, ConfigurationError, PositionError, Remedy, StateError
from cdc.events import topics
from cdc.kafka import checkpoint_topic, rights, topic_settings
from cdc.kafka.clients import KafkaClients
from cdc.kafka.topic_admin import list_topics
from cdc.kafka.topic_settings import KEPT
from cdc.positions.position import Position
from cdc.protocol.ballot import Ballot
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Key
from cdc.protocol.system_spaces import CLUSTER_SPACE, PRIVILEGE_SPACE, SYSTEM_SPACE_MAX, USER_SPACE, replicaset_uuid_in
from cdc.schema.fitting import check_types
from cdc.schema.forms import SpaceForm
from cdc.schema.tracker import TRACKED_SPACES, SchemaTracker
from cdc.sources import contents
from cdc.sources.connection import Connection
from cdc.sources.handshake import greet, vote
from cdc.stream.checkpoint import Checkpoint
from cdc.upstream import overview, resume, selection, start
from cdc.upstream.identity import instance_uuid
from cdc.upstream.selection import Answer, Choice, Needed, Standing
from cdc.upstream.start import Known

Say = Callable[[str], object]

_WRITE: Final = 2


class RightsError(CdcError):
    """The user lacks a right that the configured mode needs."""


def check(config: Config, say: Say) -> bool:
    """Report the findings, line by line. Return whether the daemon could start, or is running."""
    kafka = _Check(say, "kafka")
    stored, existing = kafka.attempt(lambda: _read_checkpoint(config), (Checkpoint(), {}))
    position = stored.position
    findings: list[Finding] = []
    if kafka.is_good:
        say(f"kafka: {config.kafka.bootstrap_servers} answers, {_progress(position)}")
        findings += check_start.of_kafka(config, stored)
        names = [topics.TopicNames(config.kafka.topic_prefix).control(control) for control in KEPT]
        admin = KafkaClients(config.name, config.kafka).admin()
        settings = topic_settings.read(admin, [name for name in names if name in existing])
        findings += check_start.of_settings(config, settings)
    keys = {finding.key for finding in findings if finding.is_failure}
    findings += check_start.of_state_path(config, stored, is_running="name" in keys)
    in_store, of_store = check_start.of_store(config)
    findings += of_store
    judged = _Check(say, "state.path")
    known = judged.attempt(lambda: _known(config, stored, in_store), None) if kafka.is_good else None
    is_first = checkpoint_topic.name_of(config.kafka.topic_prefix) not in keys
    found = [_examine_member(config, member, stored, known, say, is_first=is_first) for member in config.source.members()]
    schema = next((member.contents.schema for member in found if member.contents is not None), None)
    if schema is not None:
        findings += _published(config, schema, existing if kafka.is_good else None, stored, say)
        spaces = [(form.space_id, form.name) for form in schema.forms() if form.is_replicated]
        findings += check_start.of_patterns(config, spaces)
    findings += check_start.of_joins(config, [member.answer.ballot for member in found if member.answer.ballot is not None])
    failures = [*kafka.failures, *judged.failures, *(Remedy.OPERATOR for member in found if member.is_foreign)]
    # If all members are unusable, none would be followed, and each has reported why.
    if known is not None and not all(member.is_foreign for member in found):
        failures += _choose(config, [member.answer for member in found], start.needed(known), say)
    elif not any(member.contents for member in found):
        remedies = [member.answer.error.remedy for member in found if member.answer.error is not None]
        failures.append(Remedy.WAIT if Remedy.WAIT in remedies else Remedy.OPERATOR)
    for finding in findings:
        say(str(finding))
        if finding.is_failure:
            failures.append(Remedy.WAIT if finding.may_heal else Remedy.OPERATOR)
    count = len(failures)
    if count:
        outcome = "stop" if Remedy.OPERATOR in failures else "wait until that is over"
        say(f"run would {outcome}: {count} failure{'s' if count > 1 else ''}")
    else:
        say("the daemon runs" if check_start.runs_already(config, stored) else "run would start")
    return not count


def _progress(position: Position | None) -> str:
    """Return a description of the daemon's progress."""
    if position is None:
        return "there is no checkpoint yet"
    if position.snapshot is None:
        return "this daemon has started before, and has published nothing yet"
    return f"the checkpoint is at {position.vclock}"


def _known(config: Config, stored: Checkpoint, in_store: Checkpoint | None) -> Known:
    """Return the facts with which a first connection would begin. Raises StateForeignError, and PositionError."""
    former = StateDirectoryLock.writers_in(admission.store_path(config))
    is_store_ours = admission.is_store_ours(config, stored, former)
    known = supposed_before(config, stored, in_store, is_store_ours=is_store_ours)
    start.check_store(known)
    return known


@dataclass(slots=True)
class _Contents:
    """Contents of the system spaces in a snapshot."""

    schema: SchemaTracker = field(default_factory=SchemaTracker)
    replicaset_uuid: UUID | None = None
    users: list[Any] = field(default_factory=list)
    privileges: list[Any] = field(default_factory=list)
    instances: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Member:
    answer: Answer
    contents: _Contents | None = None
    is_foreign: bool = False


def _examine_member(
    config: Config, member: Member, stored: Checkpoint, known: Known | None, say: Say, *, is_first: bool
) -> _Member:
    """Examine one member by itself. Its errors are reported as findings."""
    try:
        # Not the daemon's own UUID: a server would mistake this connection for the daemon's, and close one of the two.
        connection = greet(member, instance_uuid(f"{config.name} check"), frame_bytes_max=config.source.frame_bytes_max)
        try:
            greeting = connection.session.greeting
            ballot = vote(connection)
            mode = "read-only" if ballot.is_read_only else "writable"
            logs = f"logs are kept from {ballot.gc_vclock} on" if ballot.gc_vclock else "all logs are kept"
            say(f"{member.address}: Tarantool {greeting.version_text}, {mode}, at {ballot.vclock}, {logs}")
            found = _read_contents(connection)
        finally:
            connection.close()
        say(f"{member.address}: {member.user} may replicate{_registration(config, member, found)}")
    except CdcError as error:
        # Errors of a connection name its address already.
        say(f"{member.address}: FAILED: {str(error).removeprefix(f'{member.address}: ')}")
        return _Member(Answer(member.address, error=error))
    answer = Answer(member.address, ballot, greeting.version_text, greeting.uuid)
    try:
        if stored.position is not None:
            resume.check_replicaset(stored.position, found.replicaset_uuid)
    except PositionError as error:
        say(f"{member.address}: FAILED: {error}")
        return _Member(answer, found, is_foreign=True)
    if known is not None:  # else Kafka doesn't report the position from which the member would be followed
        try:
            for sentence in _suitability(answer, ballot, known, is_first=is_first):
                say(sentence)
        except StateError as error:
            say(f"{member.address}: FAILED: {error}")
            return _Member(answer, found, is_foreign=True)
    return _Member(answer, found)


def _suitability(answer: Answer, ballot: Ballot, known: Known, *, is_first: bool) -> Iterator[str]:
    """Yield sentences about the usability of one member, by itself. Raises StateForeignError.

    If there is no checkpoint, `is_first` says whether this is the first of all starts; otherwise the checkpoint is lost.
    """
    needed = start.needed(known)
    standing = selection.standing(answer, needed)
    if standing is not Standing.GOOD:
        if standing is Standing.GAP and not known.is_store_ours:
            with contextlib.suppress(PositionError):  # the choice among all members reports it
                start.plan(known, ballot)
        yield selection.explained(answer, standing, needed)
        return
    snapshot = start.plan(known, ballot).snapshot
    if snapshot is None:
        yield f"{answer.address}: would resume from {needed.published}"
        if ballot.gc_vclock:
            headroom = overview.headroom_rows(needed.logs_from, ballot.gc_vclock, needed.ignored)
            yield f"{answer.address}: keeps the logs of {headroom} rows before the checkpoint"
    elif known.checkpoint is None and snapshot.publish:
        first = "this is the first start, and " if is_first else ""
        yield f"{answer.address}: would take a snapshot: {first}all rows will be published, as `r`"
    else:
        yield f"{answer.address}: would take a snapshot: {snapshot.reason}"


def _choose(config: Config, answers: Sequence[Answer], needed: Needed, say: Say) -> list[Remedy]:
    """Report which member would be followed, and why. Return the remedy of the failure to follow any; empty if there is none."""
    try:
        choice = selection.choose(answers, needed, rules(config))
        if not isinstance(choice, Choice):
            if len(answers) > 1:
                say(f"no member can be followed now: {choice.reason}")
            # What the daemon would do if nothing changed while it waits.
            choice = selection.choose(answers, needed, rules(config), waited_ms=float("inf"))
    except CdcError as error:
        if not (len(answers) == 1 and error is answers[0].error):
            say(f"FAILED: {error}")
        return [error.remedy]
    if not isinstance(choice, Choice):
        return [Remedy.WAIT]
    if choice.is_settled:
        say(f"{answers[choice.index].address} would be followed, with a snapshot first: {choice.reason}")
    elif len(answers) > 1:
        say(f"{answers[choice.index].address} would be followed: {choice.reason}")
    return []


# Rights.


def _registration(config: Config, member: Member, contents: _Contents) -> str:
    """Return the state of the id in the replica set, for mode = "registered". Raises RightsError if the daemon can't get one."""
    if config.source.mode != "registered":
        return ""
    ours = str(instance_uuid(config.name))
    ids = [row[0] for row in contents.instances if row[1] == ours]
    if ids:
        return f"; the daemon is registered as instance {ids[0]}"
    if not may_write(member.user, CLUSTER_SPACE, contents.users, contents.privileges):
        raise RightsError(
            f"{member.user} may not write to _cluster, and the daemon has no id in the replica set yet",
            f"Grant it: box.schema.user.grant('{member.user}', 'replication').",
        )
    return " and register"


def may_write(user: str, space_id: int, users: Iterable[Sequence[Any]], privileges: Iterable[Sequence[Any]]) -> bool:
    """Return whether a user may write to a space, by itself or by a role, according to rows of `_user` and `_priv`."""
    granted: dict[int, list[Sequence[Any]]] = {}
    for row in privileges:
        granted.setdefault(row[1], []).append(row)
    waiting = [row[0] for row in users if row[2] == user]
    seen: set[int] = set()
    while waiting:
        grantee = waiting.pop()
        if grantee in seen:
            continue
        seen.add(grantee)
        for _, _, kind, object_id, bits in (row[:5] for row in granted.get(grantee, ())):
            if kind == "role":
                waiting.append(object_id)
            elif bits & _WRITE and (kind == "universe" or (kind == "space" and object_id in (space_id, ""))):
                return True
    return False


class _Check:
    """One part of the check. Its errors are findings, and don't end the check."""

    def __init__(self, say: Callable[[str], object], subject: str) -> None:
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
            self._say(f"{self._subject}: FAILED: {error}")
            return otherwise


def _read_checkpoint(config: Config) -> tuple[Checkpoint, dict[str, int]]:
    kafka = config.kafka
    clients = KafkaClients(config.name, kafka)
    existing = list_topics(clients.admin(), kafka.bootstrap_servers)
    lacking = rights.missing(config.name, kafka, clients, existing)
    if lacking:
        raise rights.refusal(lacking, kafka)
    return admission.read(config), existing


def _published(
    config: Config, schema: SchemaTracker, existing: dict[str, int] | None, stored: Checkpoint, say: Say
) -> Iterator[Finding]:
    """Report a line for each published space.

    Yield findings about spaces without a topic of their own, and about missing topics.
    """
    is_published = options_of(config).space_filter()
    names = topics.TopicNames(config.kafka.topic_prefix)
    wanted = []
    for form in schema.forms():
        if is_published(form.space_id, form.name) and form.is_replicated:
            try:
                if config.state.images != "none":
                    check_types(form)
                wanted.append(names.of_space(form.space_id, form.name))
                say(_published_space(form, wanted[-1], existing, creates=config.kafka.create_topics))
            except ConfigurationError as error:
                yield Finding("spaces", str(error))
    if existing is not None:
        yield from check_start.of_foreign_topics(config, wanted, existing, stored)
        admin = KafkaClients(config.name, config.kafka).admin()
        yield from check_start.of_limits(config, topic_settings.read(admin, [topic for topic in wanted if topic in existing]))
        yield from check_start.of_missing_topics(config, wanted, existing)
        yield from check_start.of_deleted_topics(config, wanted, existing, stored)


def _published_space(form: SpaceForm, topic: str, existing: dict[str, int] | None, *, creates: bool) -> str:
    if existing is None:
        state = "Kafka doesn't say whether it exists"
    else:
        count = existing.get(topic)
        state = ("to be created" if creates else "missing") if count is None else f"{count} partition{'s' if count > 1 else ''}"
    synchronous = "; synchronous: its changes are published when a quorum has them" if form.is_sync else ""
    return f"{form.name} (space id {form.space_id}) to {topic} ({state}){synchronous}"


def _read_contents(connection: Connection) -> _Contents:
    """Return the contents of the system spaces, from a snapshot that is read no further than these."""
    connection.session.fetch_snapshot(keeps_logs=False)
    connection.send()
    found = _Contents()
    for frames in contents.rows(connection):
        _fold(frames, found)
        if frames.bodies[-1].get(Key.SPACE_ID, 0) > SYSTEM_SPACE_MAX:
            break
    return found


def _fold(frames: Frames, contents: _Contents) -> None:
    rows = {USER_SPACE: contents.users, PRIVILEGE_SPACE: contents.privileges, CLUSTER_SPACE: contents.instances}
    for header, body in zip(frames.headers, frames.bodies, strict=True):
        space_id = body.get(Key.SPACE_ID)
        if space_id in TRACKED_SPACES:
            contents.schema.apply(header[Key.REQUEST_TYPE], body)
        elif space_id in rows:
            rows[space_id].append(body[Key.TUPLE])
        else:
            contents.replicaset_uuid = replicaset_uuid_in(body) or contents.replicaset_uuid
