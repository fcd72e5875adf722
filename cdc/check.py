"""`tarantool-cdc check`: what would happen at start, found out without changing anything.

It connects to every member as the daemon would, asks for the ballot, and begins a FETCH_SNAPSHOT that it breaks off where the
system spaces end: that proves the right to replicate and shows the spaces. On Kafka's side it reads the checkpoint as any
consumer could; it takes no transactional id, so a daemon that runs goes on undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient

from cdc import checkpoint, resume, topics
from cdc.checkpoint import Checkpoint
from cdc.config import Config, Member
from cdc.daemon import instance_uuid
from cdc.errors import CdcError
from cdc.follower import SNAPSHOT_TIMEOUT_SECONDS, greet, vote
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Key
from cdc.protocol.session import SnapshotFinished, SnapshotRows
from cdc.publisher import list_topics
from cdc.schema import SYSTEM_SPACE_MAX, TRACKED_SPACES, SchemaTracker, SpaceForm, replicaset_uuid_in
from cdc.sources.tarantool import Connection


def check(config: Config, say: Callable[[str], None]) -> bool:
    """Say, line by line, what was found. Returns whether the daemon could start."""
    kafka = _Check(say, "kafka")
    stored, existing = kafka.attempt(lambda: _read_checkpoint(config), (Checkpoint(), {}))
    if kafka.is_good:
        position = stored.position
        where = f"at {position.vclock}" if position else "not there yet"
        say(f"kafka: {config.kafka.bootstrap_servers} answers, the checkpoint is {where}")
    good = [kafka.is_good]
    for member in config.source.members():
        upstream = _Check(say, member.address)
        upstream.attempt(partial(_check_member, config, member, stored, existing, say), None)
        good.append(upstream.is_good)
    return all(good)


class _Check:
    """One thing to look at: its errors are findings, not the end."""

    def __init__(self, say: Callable[[str], None], subject: str) -> None:
        self._say = say
        self._subject = subject
        self.is_good = True

    def attempt(self, look: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return look()
        except CdcError as error:
            self.is_good = False
            self._say(f"{self._subject}: FAILED: {error}")
            return otherwise


def _read_checkpoint(config: Config) -> tuple[Checkpoint, dict[str, int]]:
    kafka = config.kafka
    admin = AdminClient({**kafka.properties, "bootstrap.servers": kafka.bootstrap_servers})
    existing = list_topics(admin, kafka.bootstrap_servers)
    topic = topics.TopicNames(kafka.topic_prefix).control(topics.CHECKPOINT)
    if topic not in existing:
        return Checkpoint(), existing
    return checkpoint.read(kafka.bootstrap_servers, kafka.properties, topic, config.name), existing


def _check_member(
    config: Config, member: Member, stored: Checkpoint, existing: dict[str, int], say: Callable[[str], None]
) -> None:
    # Not the daemon's own UUID: a server would take us for it, and turn one of the two away.
    connection = greet(member, instance_uuid(f"{config.name} check"), frame_bytes_max=config.source.frame_bytes_max)
    try:
        greeting = connection.session.greeting
        ballot = vote(connection)
        mode = "read-only" if ballot.is_read_only else "writable"
        say(f"{member.address}: Tarantool {greeting.version_text}, {mode}, at {ballot.vclock}, logs kept from {ballot.gc_vclock}")
        schema, replicaset_uuid = _read_schema(connection)
        if stored.position is not None:
            resume.check_replicaset(stored.position, replicaset_uuid)
        decision = resume.decide(
            stored.position,
            ballot,
            mode=config.snapshot.mode,
            on_gap=config.source.on_gap,
            on_divergence=config.source.on_divergence,
            is_first_connect=True,
        )
    finally:
        connection.close()
    match decision:
        case resume.Continue():
            say(f"{member.address}: would go on from {stored.position.vclock if stored.position else None}")
        case resume.TakeSnapshot(reason):
            say(f"{member.address}: would take a snapshot: {reason}")
    is_published = topics.SpaceFilter(list(config.spaces.include), list(config.spaces.exclude))
    names = topics.TopicNames(config.kafka.topic_prefix)
    for form in schema.forms():
        if is_published(form.space_id, form.name) and form.is_replicated:
            say(f"{member.address}: {_published(form, names.of_space(form.space_id, form.name), existing)}")


def _published(form: SpaceForm, topic: str, existing: dict[str, int]) -> str:
    state = f"{existing[topic]} partitions" if topic in existing else "to be created"
    synchronous = "; SYNCHRONOUS: this version stops at its first transaction" if form.is_sync else ""
    return f"{form.name} ({form.space_id}) to {topic} ({state}){synchronous}"


def _read_schema(connection: Connection) -> tuple[SchemaTracker, UUID | None]:
    """The schema as a snapshot tells it, read no further than the system spaces."""
    connection.session.fetch_snapshot(keeps_logs=False)
    connection.send()
    schema = SchemaTracker()
    replicaset_uuid: UUID | None = None
    while True:
        events = connection.receive(SNAPSHOT_TIMEOUT_SECONDS)
        for event in events:
            match event:
                case SnapshotRows(frames):
                    replicaset_uuid = _fold(frames, schema) or replicaset_uuid
                    if frames.bodies[-1].get(Key.SPACE_ID, 0) > SYSTEM_SPACE_MAX:
                        return schema, replicaset_uuid
                case SnapshotFinished():
                    return schema, replicaset_uuid


def _fold(frames: Frames, schema: SchemaTracker) -> UUID | None:
    found: UUID | None = None
    for header, body in zip(frames.headers, frames.bodies, strict=True):
        if body.get(Key.SPACE_ID) in TRACKED_SPACES:
            schema.apply(header[Key.REQUEST_TYPE], body)
        else:
            found = replicaset_uuid_in(body) or found
    return found
