"""The part of `check` that asks the members: each one by itself, and then which one `run` would follow.

A member is asked as the daemon would ask it: its ballot, its replica set, the daemon's id. Then a FETCH_SNAPSHOT is begun, and
interrupted after the system spaces: that proves the right to replicate, and shows the spaces and the user's rights. Each step has
a time limit. Which member would be followed, and how, is decided by the daemon's own decisions (cdc.upstream.rehearsal).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.commands import Say
from cdc.commands.check_start import Finding
from cdc.config import Config
from cdc.config.source import Member
from cdc.daemon.start import rules
from cdc.errors import CdcError, PositionError, Remedy, SilenceError, StateError
from cdc.protocol.ballot import Ballot
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Key
from cdc.protocol.system_spaces import (
    CLUSTER_SPACE,
    PRIVILEGE_SPACE,
    REPLICASET_NAME_KEY,
    SCHEMA_SPACE,
    SYSTEM_SPACE_MAX,
    USER_SPACE,
)
from cdc.schema.tracker import TRACKED_SPACES, SchemaTracker
from cdc.sources import contents
from cdc.sources.connection import Connection
from cdc.sources.handshake import greet, vote
from cdc.sources.registration import find_id
from cdc.sources.replica_set import replicaset_uuid
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream import overview, resume, selection, start
from cdc.upstream.identity import instance_uuid
from cdc.upstream.rehearsal import Candidate, rehearse
from cdc.upstream.selection import Answer, Standing, Wait
from cdc.upstream.start import Known

Tell = Callable[[str | Finding], object]

PATIENCE_SECONDS: Final = 2.0
"""Time, in seconds, after which the wait for a snapshot is reported."""
SNAPSHOT_SECONDS: Final = 15.0
"""Maximum time, in seconds, to wait for a snapshot to begin, and for data of its next rows."""
CONTENTS_SECONDS: Final = 60.0
"""Maximum time, in seconds, to read the system spaces of a snapshot that has begun."""

_WRITE: Final = 2


class RightsError(CdcError):
    """The user lacks a right that the configured mode needs."""


@dataclass(slots=True)
class Contents:
    """Contents of the system spaces in a snapshot."""

    schema: SchemaTracker = field(default_factory=SchemaTracker)
    users: list[Any] = field(default_factory=list)
    privileges: list[Any] = field(default_factory=list)
    replicaset_name: str | None = None


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out about one member by itself.

    `contents` is None if it can't be used, or its snapshot didn't begin. `stops_run`: its answer would end the daemon.
    """

    candidate: Candidate
    contents: Contents | None = None
    stops_run: bool = False


def examine_member(
    config: Config, member: Member, stored: Checkpoint, known: Known | None, say: Tell, *, is_first: bool
) -> Examined:
    """Examine one member by itself. Its errors are reported as findings."""
    address, delay, found = member.address, None, None
    try:
        # Not the daemon's own UUID: a server would mistake this connection for the daemon's, and close one of the two.
        connection = greet(member, instance_uuid(f"{config.name} check"), frame_bytes_max=config.source.frame_bytes_max)
        try:
            greeting = connection.session.greeting
            ballot, theirs = vote(connection), replicaset_uuid(connection)
            resume.check_replicaset(stored.position, theirs)
            mode = "read-only" if ballot.is_read_only else "writable"
            logs = f"logs are kept from {ballot.gc_vclock} on" if ballot.gc_vclock else "all logs are kept"
            say(f"{address}: Tarantool {greeting.version_text}, {mode}, at {ballot.vclock}, {logs}")
            id_ = find_id(connection, instance_uuid(config.name)) if config.source.mode == "registered" else None
            try:
                found = read_contents(connection, say)
            except SilenceError as error:
                delay = error
        finally:
            connection.close()
        if found is not None:
            say(f"{address}: {member.user} may replicate{_registration(config, member, found, id_)}")
    except CdcError as error:
        # Errors of a connection name its address already.
        may_heal = error.remedy is Remedy.WAIT
        say(Finding(address, str(error).removeprefix(f"{address}: "), may_heal=may_heal))
        return Examined(Candidate(Answer(address, error=error)))
    answer = Answer(address, ballot, greeting.version_text, greeting.uuid, replicaset_uuid=theirs)
    candidate = Candidate(answer, has_id=id_ is not None, no_snapshot=delay)
    if delay is not None:
        sentence = f"{delay} So its spaces and the rights of {member.user} couldn't be read"
        say(Finding(address, sentence, is_failure=False))
    if known is not None:  # else Kafka doesn't report the position from which the member would be followed
        try:
            for sentence in _suitability(answer, ballot, known, is_first=is_first):
                say(sentence)
        except StateError as error:
            say(Finding(address, str(error)))
            return Examined(candidate, found, stops_run=True)
    return Examined(candidate, found)


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


def choose_member(config: Config, candidates: Sequence[Candidate], known: Known, say: Tell) -> list[Remedy]:
    """Report which member would be followed, and why. Return the remedy of the failure to follow any; empty if there is none."""
    answers = [candidate.answer for candidate in candidates]
    try:
        found = rehearse(candidates, known, rules(config))
        if isinstance(found, Wait):
            if not (len(answers) == 1 and answers[0].error is not None):  # its own error has been reported
                say(f"no member can be followed now: {found.reason}")
            # What the daemon would do if nothing changed while it waits.
            found = rehearse(candidates, known, rules(config), waited_ms=float("inf"))
    except CdcError as error:
        if not (len(answers) == 1 and error is answers[0].error):
            say(Finding("source.uris", str(error), may_heal=error.remedy is Remedy.WAIT))
        return [error.remedy]
    if isinstance(found, Wait):
        return [Remedy.WAIT]
    address, choice = answers[found.choice.index].address, found.choice
    if choice.is_settled:
        say(f"{address} would be followed, with a snapshot first: {choice.reason}")
    elif len(answers) > 1:
        say(f"{address} would be followed: {choice.reason}")
    return []


# Rights.


def _registration(config: Config, member: Member, contents: Contents, id_: int | None) -> str:
    """Return the state of the id in the replica set, for mode = "registered". Raises RightsError if the daemon can't get one."""
    if config.source.mode != "registered":
        return ""
    if id_ is not None:
        return f"; the daemon is registered as instance {id_}"
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


# Contents.


def read_contents(connection: Connection, say: Say) -> Contents:
    """Return the contents of the system spaces, from a snapshot that is read no further than these.

    Raises SilenceError if the snapshot doesn't begin or doesn't go on within SNAPSHOT_SECONDS, or takes CONTENTS_SECONDS.
    """
    connection.session.fetch_snapshot(keeps_logs=False)
    connection.send()
    _await_snapshot(connection, say)
    found = Contents()
    for frames in contents.rows(connection, SNAPSHOT_SECONDS, CONTENTS_SECONDS):
        _fold(frames, found)
        if frames.bodies[-1].get(Key.SPACE_ID, 0) > SYSTEM_SPACE_MAX:
            break
    return found


def _await_snapshot(connection: Connection, say: Say) -> None:
    """Wait for the first packet, and say what for if it takes long."""
    began = time.monotonic()
    for limit in (PATIENCE_SECONDS, SNAPSHOT_SECONDS):
        while (left := began + limit - time.monotonic()) > 0:
            if events := connection.receive(left):
                connection.unread(events)
                return
        if limit is PATIENCE_SECONDS:
            say(
                f"{connection.address}: waiting up to {SNAPSHOT_SECONDS:.0f} s for a snapshot to begin: before, the server waits "
                "for the quorum of its synchronous transactions, and for its disk"
            )
    raise SilenceError(
        f"{connection.address} hasn't begun a snapshot within {SNAPSHOT_SECONDS:.0f} s: a synchronous transaction may be waiting "
        "for its quorum, or the server for its disk",
        "Look into the server's log.",
    )


def _fold(frames: Frames, contents: Contents) -> None:
    rows = {USER_SPACE: contents.users, PRIVILEGE_SPACE: contents.privileges}
    for header, body in zip(frames.headers, frames.bodies, strict=True):
        space_id = body.get(Key.SPACE_ID)
        if space_id in TRACKED_SPACES:
            contents.schema.apply(header[Key.REQUEST_TYPE], body)
        elif space_id in rows:
            rows[space_id].append(body[Key.TUPLE])
        elif space_id == SCHEMA_SPACE:
            match body[Key.TUPLE]:
                case [str(key), str(name), *_] if key == REPLICASET_NAME_KEY:
                    contents.replicaset_name = name
