"""Finds out beforehand, without changing anything, what `run` would refuse, or would do although nobody wants it.

The findings cover the prefix of another daemon, a running daemon of the same name, a state.path that can't be used or that has no
store, and patterns that match no space. Each is a sentence under the key of the configuration that it concerns.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cdc.commands import silence
from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.admission import StateDirectoryLock, StateMissingError
from cdc.daemon.given_numbers import other_kafka
from cdc.daemon.http_settings import access_of
from cdc.daemon.known_topics import created_again
from cdc.daemon.start import formats_of, lost_forms_sentence, options_of
from cdc.errors import CdcError, Remedy, StateError, StateLostError
from cdc.events.columns import ColumnRules
from cdc.events.topics import CHECKPOINT, DLQ, HEARTBEAT, SCHEMA, SIGNAL, SNAPSHOT, TRANSACTION, SpaceFilter
from cdc.formats.choice import new_envelope
from cdc.formats.options import Registration
from cdc.kafka import checkpoint_topic, topic_settings
from cdc.kafka.clients import Admin, KafkaClients
from cdc.kafka.foreign_topics import ForeignTopics
from cdc.kafka.names import names_of
from cdc.kafka.topic_settings import Settings
from cdc.ops import asking
from cdc.ops.http import try_to_listen
from cdc.ops.troubles import STORE_REMEDY, STORE_REMOVED
from cdc.positions.position import Position
from cdc.protocol.ballot import Ballot
from cdc.registry.questions import Questions, RegistryRefusal
from cdc.schema.forms import SpaceForm
from cdc.store import numbers_file
from cdc.store.files import (
    has_data,
    holding_process,
    in_use,
    is_denied,
    is_held_by_daemon,
    is_locked,
    is_there,
    translate_denials,
)
from cdc.store.store import StateStore
from cdc.stream.commits.checkpoint import Checkpoint, fold
from cdc.stream.commits.former_topics import spaces_by_topic
from cdc.stream.commits.losses import snapshot_remedy
from cdc.stream.commits.ownership import NameTakenError
from cdc.stream.reports import patterns
from cdc.stream.snapshots.choice import SnapshotChoice
from cdc.upstream import joining
from cdc.upstream.identity import instance_uuid

ROOM_BYTES: Final = 1024**3
"""Free space, in bytes, below which the state store's disk is reported: nobody knows how much there is to be stored."""

_LOSSES_SHOWN: Final = 20
"""Number of deleted topics that are named one by one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence about a key of the configuration. If it isn't a failure, it is worth knowing, or (`is_well`) even good news."""

    key: str
    sentence: str
    is_failure: bool = True
    is_well: bool = False
    may_heal: bool = False
    """Whether `run` would wait for the failure's end."""
    loses_rows: bool = False
    """Whether rows were lost, or will be, for consumers or for the daemon."""
    is_silence: bool = False
    """Whether the failure is that of a daemon that runs, and is frozen or stuck."""
    is_of_running: bool = False
    """Whether the failure is that of a daemon that runs, and publishes."""

    def __str__(self) -> str:
        mark = "" if self.is_well else "FAILED: " if self.is_failure else "warning: "
        return f"{self.key}: {mark}{self.sentence}"


def of_kafka(config: Config, stored: Checkpoint, store: Position | None = None) -> Iterator[Finding]:
    """Yield findings from the checkpoint topic about prefix and name; `store` is the position of the state store.

    Listens for a daemon of the name, unless it is known.
    """
    foreign = list(_failure("kafka.topic_prefix", lambda: admission.check_owner(config, stored)))
    yield from foreign
    if not foreign:  # else the events are the other daemon's, and so is their checkpoint
        yield from _failure(
            checkpoint_topic.name_of(config.kafka.control_prefix), lambda: admission.check_position(config, stored, store)
        )
    if has_lost_store(config):
        yield Finding("state.path", f"{STORE_REMOVED}. {STORE_REMEDY}", is_of_running=True)
        return
    if runs_already(config, stored):
        silent = silence.of_running(config, stored)
        if silent is not None:
            yield Finding("name", f"{silent.sentence}. {silent.remedy}", is_silence=True)
        else:
            yield Finding(
                "name", f"the daemon {config.name!r} runs with this state.path: it is this one", is_failure=False, is_well=True
            )
        return
    if is_its_standby(config, stored):
        sign = stored.signs[config.name]
        yield Finding(
            "name",
            f"it is this one, process {holding_process(admission.store_path(config)) or 'unknown'}, the standby of process "
            f"{sign.process_id} on {sign.host}",
            is_failure=False,
            is_well=True,
        )
        return
    yield from _failure("http.listen", lambda: _check_address(config))
    directory = admission.store_path(config)
    if is_locked(directory):
        yield Finding("state.path", str(in_use(directory)))
        return
    yield from _of_name(config, stored)


def of_registry(config: Config) -> Iterator[Finding]:
    """Yield a finding if the registry of schemas can't be used, and a line if it can."""
    if not config.format.needs_registry:
        return
    registry = config.format.registry
    try:
        Questions(registry.client_settings(), auto_register=registry.auto_register).reach()
    except RegistryRefusal as refusal:
        yield Finding("format.registry", refusal.sentence, may_heal=True)
    except CdcError as error:
        yield Finding("format.registry", str(error))
    else:
        yield Finding("format.registry", f"{registry.url} answers", is_failure=False, is_well=True)


def of_schemas(
    config: Config, published: Iterable[tuple[SpaceForm, str]], *, has_images: Callable[[SpaceForm], bool]
) -> Iterator[Finding]:
    """Yield a finding for each schema that the registry lacks, if the daemon may not register schemas itself.

    `published` are the spaces' forms with their topics.
    """
    registry = config.format.registry
    if not config.format.needs_registry or registry.auto_register:
        return
    wanted: dict[Registration, None] = {}

    def note(one: Registration) -> int:
        wanted[one] = None
        return 1

    options = options_of(config)
    envelope = new_envelope("", options.prefix, formats_of(config, note))
    envelope.columns = options.columns()
    for form, topic in published:
        with contextlib.suppress(CdcError):  # a form without a schema is reported elsewhere
            envelope.pieces(form, topic, "", None if has_images(form) else "")
    try:
        questions = Questions(registry.client_settings(), auto_register=False)
        for one in wanted:
            try:
                questions.id_of(one)
            except RegistryRefusal as refusal:
                if refusal.reason != "missing":
                    return  # of_registry says so
                sentence = f"{refusal.sentence}. Register exactly this schema: {refusal.schema}"
                yield Finding("format.registry", sentence, may_heal=True)
    except CdcError:
        return  # likewise


def of_columns(rules: ColumnRules, published: Sequence[SpaceForm]) -> Iterator[Finding]:
    """Yield findings about rules for columns that don't fit the published spaces, or have no effect on them."""
    for form in published:
        yield from _failure("columns", functools.partial(rules.shown, form))
    yield from (Finding("columns", sentence, is_failure=False) for sentence in rules.without_effect(published))


def of_filters(config: Config, published: Sequence[SpaceForm]) -> Iterator[Finding]:
    """Yield findings about filters of the first snapshot that don't fit a published space, or match none."""
    choice = SnapshotChoice(options_of(config), is_first=True)
    for form in published:
        yield from _failure("snapshot.filters", functools.partial(choice.filter_of, form))
    for pattern in config.snapshot.filters:
        if not any(re.fullmatch(pattern, form.name) for form in published):
            sentence = f"{pattern!r} matches none of the published spaces"
            yield Finding("snapshot.filters", sentence, is_failure=False)


def of_replicaset_name(config: Config, name: str | None) -> Iterator[Finding]:
    """Yield a warning if the replica set has another name (None: none) than the fleet's file gives it."""
    shard = config.kafka.shard
    if shard is not None and shard.shares_topics and name is not None and name != shard.replicaset_name:
        yield Finding(
            f"fleet.shards.{shard.name}.replicaset_name",
            f"this replica set is called {name!r}, and {shard.replicaset_name!r} here: where vshard calls replica sets by name "
            "(identification_mode = 'name_as_key'), the daemons couldn't tell from where rows have moved. Set replicaset_name = "
            f'"{name}"',
            is_failure=False,
        )


def of_joins(config: Config, ballots: Collection[Ballot]) -> Iterator[Finding]:
    """Yield a warning if a registered daemon can keep members from joining."""
    if config.source.mode == "registered":
        found = [costs for ballot in ballots if (costs := joining.warning(ballot, instance_uuid(config.name))) is not None]
        yield from (Finding("source.mode", costs, is_failure=False) for costs in found[:1])


def of_cluster(config: Config, stored: Checkpoint, admin: Admin, cluster: str | None) -> Iterator[Finding]:
    """Yield findings about what was exchanged since the daemon's last run: the cluster, which has this id now, or topics."""
    kept = numbers_file.read(config.state.path, config.name, config.kafka.control_prefix)
    warning = other_kafka(kept, cluster)
    if warning is not None:
        yield Finding("kafka.bootstrap_servers", warning, is_failure=False)
    for topic, sentence in created_again(config, stored, admin, cluster):
        yield Finding(topic, sentence, is_failure=False)


def runs_already(config: Config, stored: Checkpoint) -> bool:
    """Return whether the daemon of this configuration is running: under its name, and in its state directory."""
    directory, sign = admission.store_path(config), stored.signs.get(config.name)
    if has_lost_store(config):
        return True
    # Only the daemon's own user can see who holds the directory.
    is_hidden = is_denied(directory)
    if not is_hidden and not is_held_by_daemon(directory, config.name):
        return False
    if is_hidden or sign is None:  # without a sign, the daemon has just started, or its checkpoint was deleted
        return config.http.address is not None and asking.name_at(config.http.address, access_of(config)) == config.name
    return sign.writer in StateDirectoryLock.writers_in(directory)[-1:]


def has_lost_store(config: Config) -> bool:
    """Return whether the daemon of this configuration is running, and says that its store's files were removed."""
    if config.http.address is None:
        return False
    with contextlib.suppress(CdcError):  # StateError, too: what is denied is there
        if is_there(admission.store_path(config)):
            return False
        shown = asking.ask(config.name, config.http.address, "/status", access=access_of(config))
        # A daemon of an older version doesn't report it.
        return bool((shown.get("store") or {}).get("is_removed"))
    return False


def is_its_standby(config: Config, stored: Checkpoint) -> bool:
    """Return whether the daemon of this configuration is running as the standby of another process of its name."""
    directory, sign = admission.store_path(config), stored.signs.get(config.name)
    if sign is None or not is_held_by_daemon(directory, config.name) or runs_already(config, stored):
        return False
    # By its own status: a daemon that is about to take the name is no standby.
    address = config.http.address
    return config.standby if address is None else asking.stands_by_at(address, access_of(config))


def _failure(key: str, attempt: Callable[[], object]) -> Iterator[Finding]:
    try:
        attempt()
    except CdcError as error:
        yield Finding(key, str(error), may_heal=error.remedy is Remedy.WAIT)


def _check_address(config: Config) -> None:
    """Raise ConfigurationError if the address can't be used, or NameTakenError if a daemon of the name listens there."""
    address = config.http.address
    if address is None:
        return
    shard = config.kafka.shard
    if shard is not None and asking.name_at(address, access_of(config)) == shard.fleet:
        return  # the fleet's process listens there, and gives the daemon another address
    error = admission.listener_conflict_error(config)
    if error is not None:
        raise error
    try_to_listen(address)


def _of_name(config: Config, stored: Checkpoint) -> Iterator[Finding]:
    """Yield a finding if another daemon of the name runs, for which a standby would wait."""
    try:
        admission.check_alone(config, stored, StateDirectoryLock.holders_of(admission.store_path(config)), lambda: False)
    except NameTakenError as error:
        if config.standby:
            yield Finding("name", f"{error.message}: this one would be its standby", is_failure=False, is_well=True)
        else:
            yield Finding("name", str(error))
    except CdcError as error:
        yield Finding("name", str(error), may_heal=error.remedy is Remedy.WAIT)


def of_settings(config: Config, settings: Mapping[str, Settings]) -> Iterator[Finding]:
    """Yield findings about control topics that lose needed records, given the known settings of topics."""
    for expiry in topic_settings.expiries(names_of(config.kafka), settings):
        yield Finding(expiry.topic, expiry.sentence(config.kafka.bootstrap_servers), is_failure=False, loses_rows=True)


def of_limits(config: Config, settings: Mapping[str, Settings]) -> Iterator[Finding]:
    """Yield findings about topics that accept less than the configuration allows, given the known settings of topics."""
    allowed = config.kafka.message_bytes_max
    for topic, found in sorted(settings.items()):
        limit = found.get(topic_settings.MESSAGE_BYTES)
        if limit is not None and int(limit.value) < allowed:
            yield Finding(
                topic,
                f"its max.message.bytes is {limit.value}, less than kafka.message_bytes_max, {allowed}. Batches are made as "
                "small as the topic accepts, but a single larger message ends the daemon. Raise the limit: kafka-configs.sh "
                f"--bootstrap-server {config.kafka.bootstrap_servers} --alter --entity-type topics --entity-name {topic} "
                f"--add-config max.message.bytes={allowed}",
                is_failure=False,
            )


def of_store(config: Config) -> tuple[Checkpoint | None, list[Finding]]:
    """Return the state store's content and its problems.

    The content is None if it can't be read: no store, a daemon has it, or it is denied, which `of_state_path` reports.
    """
    path = admission.store_path(config)
    if config.state.images != "full" or is_denied(path) or not has_data(path) or is_locked(path):
        return None, []
    found = Checkpoint()
    try:
        store = StateStore(path)
        try:
            names = {json.loads(key)["name"] for key in store.records} - {None}
            admission.check_store_is_ours(config, names)
            for key, value in store.records.items():
                fold(config.name, key, value, found)
        finally:
            store.close()
    except StateLostError as error:
        return Checkpoint(), [Finding("state.path", f"{error} It would be built again", is_failure=False)]
    except CdcError as error:
        return None, [Finding("state.path", str(error))]
    return found, []


def of_lost_forms(config: Config, stored: Checkpoint, in_store: Checkpoint | None) -> Iterator[Finding]:
    """Yield a finding if the checkpoint topic has lost forms that the store has. As at a start, the checkpoint gets them back."""
    restored = stored.restore_forms(in_store) if in_store is not None else ()
    if restored:
        topic = checkpoint_topic.name_of(config.kafka.control_prefix)
        yield Finding(topic, lost_forms_sentence(config, len(restored)), is_failure=False, loses_rows=True)


def of_state_path(config: Config, stored: Checkpoint, *, is_running: bool = False) -> Iterator[Finding]:
    """Yield findings about whether the state store can be in state.path, and is there if the checkpoint was written with one.

    If a daemon of the name runs elsewhere (`is_running`), the store isn't lost.
    """
    path = config.state.path
    is_needed = config.state.images == "full"
    try:
        with translate_denials(path):
            there = next(parent for parent in (path, *path.parents) if parent.exists())
        _write_into(path, there)
    except StateError as error:
        # A running daemon isn't stopped by what this command's user may not do.
        is_others = is_denied(admission.store_path(config)) and runs_already(config, stored)
        yield Finding("state.path", str(error), is_failure=is_needed and not is_others)
        return
    yield from _failure("state.path", lambda: admission.check_store_prefix(config))
    yield from _failure("state.path", lambda: _check_store(config, stored, is_running=is_running))
    free = shutil.disk_usage(there).free
    if is_needed and free < ROOM_BYTES:
        yield Finding(
            "state.path",
            f"there are {free // 1024**2} MiB free at {there}, and the store takes about twice what is published. "
            "Make room, or choose another disk.",
            is_failure=False,
        )


def _check_store(config: Config, stored: Checkpoint, *, is_running: bool) -> None:
    try:
        admission.check_store(config, stored)
    except StateMissingError as error:
        if has_lost_store(config):
            return  # which is told of the daemon
        if is_running and config.standby:
            return  # a standby fills a store of its own
        if is_running:
            error.hint = (
                "The running daemon has it in a state.path of its own: to replace that daemon, stop it and name that "
                "directory here."
            )
        raise


def _write_into(path: Path, there: Path) -> None:
    """Raise StateError if the directory `path` can't be used, or created in `there`, the part of it that exists."""
    error: str | None = None
    if not there.is_dir():
        error = f"{there} is a file"
    else:
        images = path / "images"
        has_data(images)  # raises where another user's store is
        with translate_denials(images):
            if images.is_dir() and not os.access(images, os.R_OK | os.W_OK | os.X_OK):
                error = f"{images} may not be written to"
        try:
            Path(tempfile.mkdtemp(prefix=".tarantool-cdc-check-", dir=there)).rmdir()
        except OSError as refusal:
            error = error or f"nothing can be made in {there}: {refusal.strerror}"
    if error is not None:
        raise StateError(f"{path} can't be used: {error}", "Give state.path a directory that the daemon may write to.")


def of_foreign_topics(
    config: Config, spaces: Sequence[str], existing: Mapping[str, int], stored: Checkpoint
) -> Iterator[Finding]:
    """Yield findings about topics of the published spaces that belong to another producer, given the existing topics."""
    clients, former = KafkaClients(config.name, config.kafka), spaces_by_topic(stored, names_of(config.kafka))
    foreign = ForeignTopics(config.kafka, clients)
    admin = clients.admin()
    yield from _failure("kafka.topic_prefix", lambda: foreign.check(admin, spaces, existing, former))


def of_missing_topics(config: Config, spaces: Sequence[str], existing: Collection[str]) -> Iterator[Finding]:
    """Yield findings about topics that nobody creates, given the topics of the published spaces and the existing topics."""
    kafka, names = config.kafka, names_of(config.kafka)
    wanted = [CHECKPOINT, SCHEMA, SNAPSHOT]
    wanted += [TRANSACTION] if kafka.transaction_topic != "none" else []
    wanted += [HEARTBEAT] if kafka.heartbeat_interval_ms else []
    wanted += sorted(kafka.optional_topics)
    wanted += [DLQ] if "dlq" in (config.format.on_error, config.format.on_image_error) else []
    missing = sorted({*spaces, *map(names.control, wanted)} - set(existing))
    if missing and not kafka.create_topics:
        yield Finding(
            "kafka.create_topics",
            f"it is false, and {patterns.listed(missing)} {'is' if len(missing) == 1 else 'are'} missing. Create "
            f"{'it' if len(missing) == 1 else 'them'}, or set it to true.",
        )


def of_signal_topic(config: Config, existing: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding if signals could be in a partition that the daemon doesn't read, given the topics' partitions."""
    topic = names_of(config.kafka).control(SIGNAL)
    count = existing.get(topic, 0)
    if config.kafka.signal_topic and count > 1:
        yield Finding(
            topic,
            f"it has {count} partitions, and the daemon reads only the first: delete it, and create it with one partition",
            is_failure=False,
        )


def of_deleted_topics(
    config: Config, spaces: Sequence[str], existing: Collection[str], stored: Checkpoint, *, is_ours: bool = True
) -> Iterator[Finding]:
    """Yield findings about deleted topics of this daemon, given the topics of the published spaces and the existing topics.

    If the prefix isn't this daemon's (`is_ours`), its topics of these names have never been there: fleet.topics was changed, say.
    """
    if not is_ours:
        return
    former = spaces_by_topic(stored, names_of(config.kafka))
    for loss in list(stored.losses.values())[:_LOSSES_SHOWN]:
        own = replace(loss, shards=config.kafka.shards_of(loss.topic))
        yield Finding(own.topic, f"{own.sentence}. {own.remedy}", is_failure=False, loses_rows=True)
    if (more := len(stored.losses) - _LOSSES_SHOWN) > 0:
        yield Finding("topics", f"so were {more} other topics, each with the same remedy", is_failure=False, loses_rows=True)
    for topic in spaces:
        if topic in stored.losses:
            continue
        if topic in former and topic not in existing:
            # A running daemon creates the topic with the first row that it writes there, and `snapshot` makes it write all rows.
            remedy = snapshot_remedy(former[topic], config.kafka.shards_of(topic))
            when = "While the daemon runs" if config.kafka.create_topics else "Once it is there again and the daemon runs"
            yield Finding(
                topic,
                f"it was deleted, and what was published there is gone. {when}, {remedy}",
                is_failure=False,
                loses_rows=True,
            )
    schema = names_of(config.kafka).control(SCHEMA)
    if former and schema not in existing and config.kafka.create_topics:
        yield Finding(
            schema,
            "it was deleted, and without it consumers can't read rows. The daemon makes it again at its start, or within a "
            "minute if it runs, with the present forms of all published spaces",
            is_failure=False,
        )


def of_patterns(config: Config, spaces: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """Yield findings about patterns that match none of the master's spaces, given with their ids, or leave none to publish."""
    include, exclude = list(config.spaces.include), list(config.spaces.exclude)
    is_default = "include" not in config.spaces.model_fields_set
    for key, sentence in patterns.without_space([] if is_default else include, exclude, spaces):
        yield Finding(f"spaces.{key}", sentence)
    is_published = SpaceFilter(include, exclude)
    if not any(is_published(space_id, name) for space_id, name in spaces):
        own = patterns.own(spaces)
        yield Finding(
            "spaces",
            f"no space would be published.{patterns.shown(own, ' Correct spaces.include and spaces.exclude.')}",
            # A master without spaces may get some, which are published then.
            is_failure=bool(own) or not is_default,
        )
