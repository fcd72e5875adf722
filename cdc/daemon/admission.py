"""Checks before a daemon claims its name, as the claim stops another daemon of the same name.

    read the checkpoint ─▶ is it there if events are? ─▶ is the prefix ours? ─▶ is the checkpoint's state store there?
                        ─▶ is no daemon of this name running?

The checks change nothing, neither in Kafka nor on the disk, except that --take-prefix fences the prefix's former owner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from confluent_kafka import KafkaException

from cdc.config import Config
from cdc.daemon.http_settings import access_of
from cdc.errors import CdcError, ConfigurationError, ConnectionLostError, StateError
from cdc.kafka import checkpoint_topic, fleet_claim
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import FORBIDDEN, reading_error
from cdc.kafka.readers_view import ReadersView
from cdc.kafka.sign_of_life import listen
from cdc.kafka.topic_admin import PUT_BACK, list_topics
from cdc.ops import asking
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.store import numbers_file
from cdc.store.files import DirectoryLock, daemon_named, is_locked, is_there, lock, translate_denials, translate_lmdb_errors
from cdc.stream.commits import ownership
from cdc.stream.commits.checkpoint import Checkpoint, Sign
from cdc.stream.commits.ownership import NameTakenError
from cdc.upstream.witnesses import Witnesses

_WRITERS: Final = "writers"
_INODE: Final = "inode:"
"""Prefix of the inode number of the `writers` file. A copied file has another inode number, and the original may be in use."""
_PREFIX: Final = "prefix:"
"""Prefix of the line with the kafka.topic_prefix of the daemon that used the directory last."""
_WRITERS_KEPT: Final = 8
_OPTION_NAMES: Final = ("rebuild_state", "take_over", "take_prefix")
_TO_START: Final = re.compile(r"start (?:once )?with (--[a-z-]+)(?: and (--[a-z-]+))?")
_FENCE_SECONDS: Final = 10.0
_FENCE_TIMEOUT_MS: Final = 60_000

Stopping = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Command-line options by which the operator overrides a failed check."""

    rebuild_state: bool = False
    """Start although the checkpoint's state store is missing or outdated, or events exist without a checkpoint."""
    take_over: bool = False
    """Fence another daemon of this name, if one is running."""
    take_prefix: bool = False
    """Claim the prefix of a daemon of another name, which is gone for good."""

    @property
    def claims_at_once(self) -> bool:
        """Whether the operator has decided that this daemon is the one."""
        return self.take_over or self.rebuild_state

    def added_to(self, hint: str) -> str:
        """Return the hint with the options it names added to those already given."""
        given = [f"--{name.replace('_', '-')}" for name in _OPTION_NAMES if getattr(self, name)]
        if not given:
            return hint

        def added(found: re.Match[str]) -> str:
            more = [option for option in found.groups() if option is not None and option not in given]
            return f"add {' and '.join(more)} to {' '.join(given)}"

        return _TO_START.sub(added, hint)


NO_OPTIONS: Final = StartOptions()


class StateMissingError(StateError):
    """The checkpoint was written with a state store, and the store is missing."""


class CheckpointLostError(ConfigurationError):
    """Events exist, but the checkpoint that gives their position is missing."""


def read(config: Config, report_delay: Callable[[str], None] = lambda _: None) -> Checkpoint:
    """Read the checkpoint topic. Returns an empty checkpoint if the topic doesn't exist.

    While Kafka doesn't answer, `report_delay` is called with the reason, before the time limit. Raises ConnectionLostError or
    ConfigurationError.
    """
    kafka, topic = config.kafka, checkpoint_topic.name_of(config.kafka.control_prefix)
    clients = KafkaClients(config.name, kafka)
    count = list_topics(clients.admin(), kafka.bootstrap_servers, report_delay).get(topic)
    if count is None:
        return Checkpoint()
    if count > 1:
        raise ConfigurationError(
            f"the topic {topic} has {count} partitions, and the daemon keeps its position in one",
            "Delete it: the daemon creates it again, with one partition.",
        )
    return checkpoint_topic.read(clients.consumer("read_committed"), topic, config.name, kafka.bootstrap_servers)


# The prefix.


def release_prefix(config: Config, stored: Checkpoint, is_stopping: Stopping) -> None:
    """Fence the daemon that owned the prefix, so that this daemon can claim it.

    Raises NameTakenError if the owner is still running.
    """
    owner = ownership.owner(stored)
    if owner is None or owner == config.name:
        return
    if ownership.is_fleet(owner):
        raise NameTakenError(
            f"kafka.topic_prefix {config.kafka.topic_prefix!r} belongs to the {owner}, and nobody can tell whether one of its "
            "daemons still runs",
            f"Stop them all, and delete the topic {checkpoint_topic.name_of(config.kafka.topic_prefix)}, which has the claim.",
        )
    sign = stored.signs.get(owner)
    if sign is None or not sign.is_last:
        found = _listen_for(config, owner, is_stopping)
        if found is not None:
            raise NameTakenError(
                f"the daemon {owner!r}, whose kafka.topic_prefix {config.kafka.topic_prefix!r} is to be taken, is running"
                f"{_where(found)}",
                "Stop that one first.",
            )
    # A frozen owner must not continue publishing when it wakes up. If it is of an older version, its id is its name alone.
    for transactional_id in sorted({owner, ownership.transactional_id(owner, config.kafka.control_prefix)}):
        try:
            _fence(config, transactional_id)
        except KafkaException as error:
            structlog.get_logger().warning(
                "the daemon that had the prefix can't be fenced; make sure that it is gone",
                owner=owner,
                transactional_id=transactional_id,
                reason=error.args[0].str(),
            )


def fence_former_version(config: Config, stored: Checkpoint) -> None:
    """Fence the process that wrote the checkpoint if it had the transactional id of an older version, the name alone.

    Otherwise a frozen process could continue publishing when it wakes up, and consumers would wait for the transaction that a
    killed one left open. Happens once: the checkpoint says from then on that the writer has the present id. A daemon of the
    same name and another prefix may have the former id, too; it claims that id again and resumes. Raises ConnectionLostError.
    """
    former = ownership.former_id(stored, config.name, config.kafka.control_prefix)
    if former is None:
        return
    log = structlog.get_logger()
    try:
        _fence(config, former)
    except KafkaException as error:
        if error.args[0].code() not in FORBIDDEN:
            raise reading_error(error.args[0], f"the former transactional id {former!r} can't be claimed") from error
        log.warning(
            "the transactional id of the former version can't be fenced; make sure that no daemon of that version runs",
            transactional_id=former,
            reason=error.args[0].str(),
        )
    else:
        log.info("the transactional id of the former version is fenced", transactional_id=former)


def _fence(config: Config, transactional_id: str) -> None:
    """Fence the producer of a transactional id. Raises KafkaException."""
    KafkaClients(config.name, config.kafka).fencer(transactional_id, _FENCE_TIMEOUT_MS).init_transactions(_FENCE_SECONDS)


# The store.


def store_path(config: Config) -> Path:
    """Return the directory of the state store."""
    return config.state.path / "images"


def check_store(config: Config, stored: Checkpoint) -> None:
    """Raise StateMissingError if the checkpoint was written with a state store and the store is missing."""
    position = stored.position
    if config.state.images != "full" or not stored.has_store or position is None or position.snapshot is None:
        return
    path = store_path(config)
    with translate_denials(path):
        is_file = config.state.path.is_file()
    if is_file:
        raise StateError(f"{config.state.path} (state.path) is a file", "Give state.path the directory of the daemon's state.")
    if not is_there(path):
        raise StateMissingError(
            f"there is no state store in {path} (state.path), but the checkpoint of {config.name!r} was written with one: "
            "without it all rows would be published again",
            "If it is somewhere else, correct state.path. If it is lost, start once with --rebuild-state.",
        )


def check_store_is_here(config: Config, stored: Checkpoint, is_stopping: Stopping, *, looks_elsewhere: bool) -> None:
    """Do as `check_store`. If it `looks_elsewhere`, raise NameTakenError if a running daemon has the store."""
    try:
        check_store(config, stored)
    except StateMissingError:
        if looks_elsewhere:
            check_alone(config, stored, (), is_stopping)
        raise


def is_store_ours(config: Config, stored: Checkpoint, former: Collection[str]) -> bool:
    """Return whether one of the state directory's `former` processes was the last to write the checkpoint.

    If not, the store may be an outdated copy. Older versions recorded no processes; then this returns True.
    """
    if config.state.images != "full" or not stored.has_store or stored.writer is None or not former:
        return True
    return stored.writer in former


def newest_numbers(config: Config) -> Numbers:
    """Return the highest numbers of the last events of this prefix. Raises ConnectionLostError."""
    return ReadersView(config.kafka, config.name, KafkaClients(config.name, config.kafka)).newest_numbers()


def check_position(config: Config, stored: Checkpoint, store: Position | None = None) -> None:
    """Raise CheckpointLostError if events were published, but the checkpoint topic has no position of this daemon.

    The topics know of such events, the `store` at its position, or the file of numbers.
    """
    if stored.position is not None:
        return
    kafka = config.kafka
    kept = numbers_file.read(config.state.path, config.name, kafka.control_prefix)
    witnesses = Witnesses(store, kept, topics=newest_numbers(config))
    seq, is_in_topics = witnesses.given(None).seq, witnesses.topics.seq
    topic = checkpoint_topic.name_of(kafka.control_prefix)
    if is_in_topics and read(config).position is not None:
        raise ConnectionLostError("another daemon of this name has begun meanwhile; reading the checkpoint again")
    again = f"start once with --rebuild-state: all rows are published again, as `r`, with seqs from {seq + 1} on."
    if is_in_topics:
        raise CheckpointLostError(
            f"there is no checkpoint of the daemon {config.name!r} in {topic}, but topics of {kafka.topic_prefix} have events up "
            f"to seq {is_in_topics}: the checkpoint was deleted, or the daemon had another name",
            f"If it had another name, give it that name again. If the checkpoint is lost, {again} {PUT_BACK}",
        )
    if seq:
        what, numbers = witnesses.highest()
        raise CheckpointLostError(
            f"there is no checkpoint of the daemon {config.name!r} in {topic}, and no event of {kafka.topic_prefix} at "
            f"{kafka.bootstrap_servers}, but {what} up to seq {numbers.seq}: this is another Kafka, or it has lost its topics",
            f"If it is the wrong Kafka, correct kafka.bootstrap_servers. Otherwise {again}",
        )


# The name.


def check_store_is_ours(config: Config, names: Collection[str]) -> None:
    """Raise StateError if the store belongs to another daemon, as it would be emptied; `names` are the daemons recorded in it."""
    if names and config.name not in names:
        by = ", ".join(map(repr, sorted(names)))
        raise StateError(
            f"the state store {store_path(config)} belongs to the daemon {by}, and this one is {config.name!r}",
            f"Give this one a state.path of its own. If {by} is gone for good, remove the directory.",
        )


def check_store_prefix(config: Config) -> None:
    """Raise StateError if the store was written for another prefix.

    It would be emptied, as nothing that it has was published under this prefix. The daemon of the other prefix may have the same
    name, for example production beside staging, and still need it.
    """
    path, prefix = store_path(config), config.kafka.control_prefix
    former = StateDirectoryLock.prefix_of(path)
    if config.state.images == "full" and former is not None and former != prefix and is_there(path):
        raise StateError(
            f"the state store {path} was written with kafka.topic_prefix {former!r}, and this daemon, {config.name!r}, has "
            f"{prefix!r}",
            "Give this one a state.path of its own. If the prefix was changed for good, start once with --rebuild-state.",
        )


class StateDirectoryLock:
    """This process's lock on the state directory, and the list of earlier holders.

    The holder of the lock knows that all earlier holders have ended. A copied directory, however, has a lock of its own.
    """

    def __init__(self, config: Config) -> None:
        """Lock the directory, unless the state store has locked it already. Raises StateError if another process holds it."""
        self._lock: DirectoryLock | None = None
        self._prefix = config.kafka.control_prefix
        self._path: Path | None = store_path(config)
        if config.state.images == "full":
            return
        try:
            with translate_lmdb_errors(self._path):
                self._lock = lock(self._path, daemon_named(config.name))
        except StateError as error:
            if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, BlockingIOError):
                raise
            structlog.get_logger().warning("state.path can't be used, and a large transaction would need it", reason=str(error))
            self._path = None

    @staticmethod
    def writers_in(directory: Path) -> list[str]:
        """Return the ids of the last processes that used the directory, oldest first."""
        try:
            found = (directory / _WRITERS).read_text().split()
        except (OSError, UnicodeDecodeError):
            return []
        return [each for each in found if not each.startswith((_INODE, _PREFIX))]

    @staticmethod
    def prefix_of(directory: Path) -> str | None:
        """Return the kafka.topic_prefix of the daemon that used the directory last; None if none or an older version did."""
        try:
            found = (directory / _WRITERS).read_text().split()
        except (OSError, UnicodeDecodeError):
            return None
        return next((each.removeprefix(_PREFIX) for each in found if each.startswith(_PREFIX)), None)

    @staticmethod
    def holders_of(directory: Path) -> list[str]:
        """Return the ids of the processes that held this directory's own lock, rather than that of the original of a copy."""
        try:
            with open(directory / _WRITERS) as file:
                mark, *found = file.read().split()
                is_original = mark == f"{_INODE}{os.fstat(file.fileno()).st_ino}"
                return [each for each in found if is_original and not each.startswith(_PREFIX)]
        except (OSError, ValueError):
            return []

    def former_writers(self) -> list[str]:
        """Return the ids of the last processes that used this directory, or the directory it was copied from, oldest first."""
        return [] if self._path is None else self.writers_in(self._path)

    def former_holders(self) -> list[str]:
        """Return the ids of the processes that held the current lock before: they have ended."""
        return [] if self._path is None else self.holders_of(self._path)

    def record_holder(self, writer: str) -> None:
        """Record this process as the directory's holder. Raises StateError."""
        if self._path is None:
            return
        former = [each for each in self.former_writers() if each != writer]
        with translate_lmdb_errors(self._path):
            self._write([*former[-_WRITERS_KEPT:], writer])

    def remove_holder(self, writer: str) -> None:
        """Remove this process from the holders, after it found that the store isn't its own. Raises StateError."""
        if self._path is not None:
            with translate_lmdb_errors(self._path):
                self._write([each for each in self.former_writers() if each != writer])

    def _write(self, writers: list[str]) -> None:
        assert self._path is not None
        descriptor = os.open(self._path / _WRITERS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            marks = f"{_INODE}{os.fstat(descriptor).st_ino}", f"{_PREFIX}{self._prefix}"
            file.write("\n".join([*marks, *writers]) + "\n")
            file.flush()
            # If the machine stopped and an older list were left, this directory would look like another daemon's.
            os.fsync(descriptor)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()


def check_alone(config: Config, stored: Checkpoint, former: Collection[str], is_stopping: Stopping) -> None:
    """Raise NameTakenError if another daemon of this name is running.

    Listens for signs of life, unless the checkpoint or the `former` processes of the state directory give the answer. Raises
    ConnectionLostError if one has run meanwhile: then the checkpoint that was `stored` says no longer what a start needs.
    """
    if ownership.is_known_gone(stored, config.name, former):
        return
    structlog.get_logger().info(
        "checking whether another daemon of this name is running", name=config.name, seconds=ownership.SILENCE_SECONDS
    )
    found = _listen_for(config, config.name, is_stopping)
    if found is not None:
        raise NameTakenError(
            f"a daemon {config.name!r} is running{_where(found)}, and only one daemon of a name can run",
            f"Stop that one first{how_to_end_it(config)}, or give this one another name and kafka.topic_prefix. If it is to wait "
            "for that one's end, start it with --standby (or standby = true).",
        )
    if is_stopping():
        return
    newest = read(config)
    if (newest.writer, newest.position) != (stored.writer, stored.position):
        raise ConnectionLostError("another daemon of this name has run and ended meanwhile; reading the checkpoint again")


class Former:
    """The daemon that had the name before. With at_least_once delivery, a take-over fences its checkpoints, not its events.

    The process that takes the name over therefore waits for its end. The checkpoint records this from the claim on, until the
    wait is over: if this process ends meanwhile, the next one waits in its place, whatever its own options are.
    """

    def __init__(self, config: Config, options: StartOptions, writer: str) -> None:
        """`writer` is the present process."""
        self._config = config
        self._writer = writer
        self._takes_over = options.take_over and config.kafka.delivery == "at_least_once"
        self.is_awaited = False
        """Whether it may still publish."""

    def is_to_be_awaited(self, stored: Checkpoint, lock: StateDirectoryLock | None) -> bool:
        """Return whether it may still publish. `stored` is the checkpoint that was found with the present claim to the name."""
        if stored.writer != self._writer:
            holders = lock.former_holders() if lock is not None else []
            is_gone = ownership.is_known_gone(stored, self._config.name, holders)
            self.is_awaited = stored.awaits_former or (self._takes_over and not is_gone)
        return self.is_awaited

    def await_end(self, is_stopping: Stopping) -> None:
        """Wait until the daemon that is fenced now has ended, so that nothing that it has in hand arrives later.

        A daemon that is silent counts as ended. Returns at once if there can be none. Raises ConnectionLostError.
        """
        if not self.is_awaited:
            return
        structlog.get_logger().info(
            "waiting until the daemon that had the name has ended, as Kafka doesn't refuse its events",
            name=self._config.name,
            silence_seconds=ownership.SILENCE_SECONDS,
        )
        while _listen_for(self._config, self._config.name, is_stopping, apart_from=self._writer) is not None:
            pass
        self.is_awaited = self._takes_over = is_stopping()


def check_owner(config: Config, stored: Checkpoint) -> None:
    """Raise PrefixTakenError if the prefix belongs to somebody else; for a shard's daemon also that of its fleet."""
    ownership.check(stored, config.kafka.control_prefix, config.name)
    fleet_claim.check(config.kafka, KafkaClients(config.name, config.kafka))


def how_to_end_it(config: Config) -> str:
    """Return the part of a hint that says how to stop a daemon of this name with another state directory."""
    path = store_path(config)
    if config.state.images != "full" or is_there(path):
        return ", or start with --take-over to end it"
    why = f"there is no state store in {path}"
    return f", or start with --take-over and --rebuild-state to end it and publish all rows again ({why})"


def former_holder(config: Config, stored: Checkpoint) -> str | None:
    """Return the process that holds the name, as far as the checkpoint tells; None if that process stopped cleanly."""
    sign = stored.signs.get(config.name)
    if sign is None or sign.is_last or sign.writer != stored.writer:
        return None
    return f"process {sign.process_id} on {sign.host}"


def listener_conflict_error(config: Config, options: StartOptions = NO_OPTIONS) -> CdcError | None:
    """Return the error to raise if another daemon listens on http.listen, before this one opens anything; None if none does."""
    address = config.http.address
    if address is None:
        return None
    # A daemon that holds this state directory can be stopped only by a signal.
    hint = "" if is_locked(store_path(config)) else how_to_end_it(config)
    return asking.listener_conflict_error(config.name, address, options.added_to(hint), access_of(config))


def _listen_for(config: Config, name: str, is_stopping: Stopping, *, apart_from: str | None = None) -> Sign | None:
    """Listen for the daemon of this name, and return its sign of life; None if it gives none."""
    topic = checkpoint_topic.name_of(config.kafka.control_prefix)
    return listen(KafkaClients(config.name, config.kafka), topic, name, is_stopping, apart_from=apart_from)


def _where(found: Sign) -> str:
    return f" on {found.host} as process {found.process_id}" if found.host else ""
