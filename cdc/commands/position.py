"""`tarantool-cdc position`: shows the checkpoint of a daemon, writes it to a file, and puts it back where it was lost.

    show             the position in Kafka, beside the members' and the store's
    export FILE      all records of the checkpoint: the position, the forms of the spaces, and the claim to the prefix
    set FILE         writes these records into a prefix that has no position

A position by itself is of no use: the forms that belong to it say how the rows after it are read. So `set` takes only what
`export` has written, as a whole, and never replaces a position. If the file is older than what was published, the next start
notices that, as it does for every checkpoint that lost its newest records, and takes a snapshot.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from cdc.commands import Say, check_start
from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.admission import StateDirectoryLock
from cdc.errors import CdcError, ConfigurationError, RequestError
from cdc.events import topics
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import reading_error
from cdc.kafka.names import names_of
from cdc.kafka.topic_admin import TopicAdmin
from cdc.positions.vclock import VClock
from cdc.sources.handshake import greet, vote
from cdc.store.files import is_denied, is_locked
from cdc.stream.commits import ownership
from cdc.stream.commits.checkpoint import Checkpoint, Writer, fold, owner_record, position_record, space_record
from cdc.upstream.identity import instance_uuid

FORMAT: Final = "checkpoint of tarantool-cdc, 1"
"""First line of an exported file."""
_TRANSACTION_MS: Final = 30_000
_SECONDS: Final = 30.0


def show(config: Config, say: Say, *, as_json: bool) -> None:
    """Print the checkpoint, the members' positions and the store's. Raises the errors of reading Kafka."""
    stored = admission.read(config)
    position = stored.position
    if position is None:
        say("{}" if as_json else f"the daemon {config.name!r} has no checkpoint at {config.kafka.bootstrap_servers}")
        return
    members, problems = _members(config)
    in_store, _ = check_start.of_store(config)
    store = in_store.position.vclock if in_store is not None and in_store.position is not None else None
    if as_json:
        value: dict[str, Any] = {
            "name": config.name,
            "checkpoint": position.to_json(),
            "writer": stored.writer,
            "has_store": stored.has_store,
            "members": {address: vclock.to_json() for address, vclock in members.items()},
            "store": store.to_json() if store is not None else None,
        }
        say(json.dumps(value, indent=1))
        return
    snapshot = position.snapshot
    lines = [
        ("name", config.name),
        ("checkpoint", str(position.vclock)),
        ("seq", str(position.seq)),
        ("schema", f"version {position.schema_version}, {len(stored.published_forms())} spaces published"),
        ("snapshot", f"{snapshot.snapshot_id}, {'complete' if snapshot.is_complete else 'not complete'}" if snapshot else "none"),
        ("replica set", str(position.replicaset_uuid)),
        ("server", str(position.server_uuid)),
        ("store", _store_text(config, store)),
    ]
    for address, vclock in members.items():
        behind = sum(max(0, lsn - position.vclock[origin]) for origin, lsn in vclock.items())
        lines.append(("member", f"{address} at {vclock}: {behind} rows that aren't in Kafka"))
    lines += [("member", problem) for problem in problems]
    for name, text in lines:
        say(f"{name:<12} {text}")


def export(config: Config, say: Say, file: Path) -> None:
    """Write the checkpoint to a new file. Raises ConfigurationError if there is none, or the file can't be written."""
    stored = admission.read(config)
    if stored.position is None:
        raise ConfigurationError(f"the daemon {config.name!r} has no checkpoint at {config.kafka.bootstrap_servers}")
    records = _records(config, stored)
    head = {"format": FORMAT, "name": config.name, "prefix": config.kafka.control_prefix, "records": len(records)}
    lines = [json.dumps(head)]
    for key, value in records:
        lines.append(json.dumps([key.decode(), value.decode()]))
    _write_new(file, "".join(f"{line}\n" for line in lines))
    position = stored.position
    say(
        f"{file}: the position {position.vclock}, seq {position.seq}, and the forms of {len(stored.spaces)} spaces, of which "
        f"{len(stored.published_forms())} are published"
    )


def put_back(config: Config, say: Say, file: Path, confirm: Callable[[str], bool]) -> bool:
    """Ask `confirm`, and write an exported checkpoint into a prefix that has none. Return whether it was written.

    Raises ConfigurationError if the file isn't this daemon's, RequestError if there is a position already or the daemon runs.
    """
    records, found = _read(config, file)
    position = found.position
    assert position is not None
    stored = _without_position(config)
    admission.check_owner(config, stored)
    admission.check_alone(config, stored, StateDirectoryLock.holders_of(admission.store_path(config)), lambda: False)
    if not confirm(f"Put the position {position.vclock}, seq {position.seq}, into {config.kafka.bootstrap_servers}?"):
        say("nothing was done")
        return False
    # The question may have waited for hours, and a daemon may have started meanwhile.
    _without_position(config)
    _write(config, records)
    say(
        f"the checkpoint is at {position.vclock} again. If the topics have newer events, the next start notices that, and takes "
        "a snapshot"
    )
    return True


def _without_position(config: Config) -> Checkpoint:
    """Return what is in Kafka. Raises RequestError if a position is among it."""
    stored = admission.read(config)
    if stored.position is not None:
        raise RequestError(
            f"the daemon {config.name!r} has a checkpoint here, at {stored.position.vclock} with seq {stored.position.seq}",
            "It is never replaced. Start the daemon: if the checkpoint has lost its newest records, it notices that.",
        )
    return stored


def _write_new(file: Path, text: str) -> None:
    """Write a file as a whole, or not at all. Raises ConfigurationError if it is there already, or can't be written."""
    is_new = False
    try:
        with file.open("x", encoding="utf-8") as opened:
            is_new = True
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        if is_new:
            file.unlink(missing_ok=True)
        remedy = "Name a file that isn't there yet, in a directory that has room."
        raise ConfigurationError(f"{file} can't be written: {error.strerror}", remedy) from error


def _members(config: Config) -> tuple[dict[str, VClock], list[str]]:
    """Return the positions of the members that answer, and a sentence for each other one."""
    found: dict[str, VClock] = {}
    problems = []
    for member in config.source.members():
        try:
            connection = greet(member, instance_uuid(f"{config.name} check"), frame_bytes_max=config.source.frame_bytes_max)
            try:
                found[member.address] = vote(connection).vclock
            finally:
                connection.close()
        except CdcError as error:
            problems.append(str(error))
    return found, problems


def _store_text(config: Config, store: VClock | None) -> str:
    if config.state.images != "full":
        return f'none (state.images = "{config.state.images}")'
    if store is not None:
        return str(store)
    path = admission.store_path(config)
    if is_denied(path):
        return "not known: only the daemon's user may look into it"
    return "in use by the running daemon: `tarantool-cdc status` shows its position" if is_locked(path) else "empty"


def _records(config: Config, stored: Checkpoint) -> list[tuple[bytes, bytes]]:
    now_ms = time.time_ns() // 1_000_000
    assert stored.position is not None
    writer = Writer(stored.writer or "", bool(stored.has_store), stored.transactional_id, stored.awaits_former)
    records = [position_record(config.name, stored.position, writer, now_ms)]
    owner_key, owner = owner_record(config.name, now_ms)
    assert owner is not None
    records.append((owner_key, owner))
    for space_id, space in sorted(stored.spaces.items()):
        key, value = space_record(config.name, space_id, space)
        assert value is not None
        records.append((key, value))
    return records


def _read(config: Config, file: Path) -> tuple[list[tuple[bytes, bytes]], Checkpoint]:
    """Return the records in an exported file, and the checkpoint that they are."""
    problem = ""
    records: list[tuple[bytes, bytes]] = []
    found = Checkpoint()
    try:
        head, *lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if head["format"] != FORMAT:
            problem = f"it has the format {head['format']!r:.100}"
        elif (head["name"], head["prefix"]) != (config.name, config.kafka.control_prefix):
            problem = f"it is of the daemon {head['name']!r} with the prefix {head['prefix']!r}"
        else:
            for key, value in lines:
                records.append((key.encode(), value.encode()))
                fold(config.name, *records[-1], found)
            if len(records) != head["records"]:
                problem = f"it has {len(records)} of {head['records']} records"
    except OSError as error:
        problem = str(error.strerror)
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "`position export` hasn't written it like that"
    if not problem and found.position is None:
        problem = "it has no position"
    if problem:
        raise ConfigurationError(
            f"{file} can't be used: {problem}", "Name a file that `position export` of this daemon has made."
        )
    return records, found


def _write(config: Config, records: list[tuple[bytes, bytes]]) -> None:
    """Write records of the checkpoint in one transaction. Raises the errors of Kafka."""
    topic = names_of(config.kafka).control(topics.CHECKPOINT)
    clients = KafkaClients(config.name, config.kafka)
    TopicAdmin(config.kafka, clients.admin, threading.Event()).ensure([topic])
    producer = clients.fencer(ownership.transactional_id(config.name, config.kafka.control_prefix), _TRANSACTION_MS)
    try:
        producer.init_transactions(_SECONDS)
        _without_position(config)  # what a daemon that has just started has written; from here on, it writes no more
        producer.begin_transaction()
        for number, (key, value) in enumerate(records):
            producer.produce(topic, value, key, partition=0)
            if not number:
                producer.flush(_SECONDS)  # the first message goes alone: see cdc.kafka.first_writes
        producer.commit_transaction(_SECONDS)
    except KafkaException as error:
        raise reading_error(error.args[0], f"{topic} can't be written") from error
