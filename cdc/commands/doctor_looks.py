"""What the doctor looks at beyond `check`: logs, clocks, Kafka's replicas and limits, versions, secrets, and this machine."""

from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]  # it is documented

from cdc.commands.check import Examination
from cdc.config import Config, has_secret, read
from cdc.daemon.row_path import path_of
from cdc.kafka import topic_settings
from cdc.kafka.broker_limits import broker_limits
from cdc.kafka.clients import TRANSACTION_TIMEOUT_DEFAULT_MS, KafkaClients
from cdc.kafka.names import names_of
from cdc.upstream import overview, start

PROVEN: Final = {(2, 6): "2.6.0", (2, 11): "2.11.5", (3, 3): "3.3.0"}
"""By the first two numbers of Tarantool's version: the version of which the tests read whole streams."""
FILES_MIN: Final = 4_096
CLOCK_SECONDS_MAX: Final = 2.0
OUTAGE_MINUTES_MIN: Final = 30.0
"""Outage, in minutes, that the logs of a member should cover."""
_TRANSACTIONS: Final = "__transaction_state"
_DAY_MS: Final = 86_400_000
_ASK_SECONDS: Final = 5.0


class Harm(IntEnum):
    """How much harm something does; the worst first."""

    LOSS = 1
    STOP = 2
    WAIT = 3
    SOON = 4
    NOTE = 5


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that is wrong: what it concerns, a sentence, and what to change ("": the sentence says it)."""

    harm: Harm
    subject: str
    sentence: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"harm": self.harm.name.lower(), "subject": self.subject, "sentence": self.sentence, "remedy": self.remedy}


def all_looks(config: Config, found: Examination, shown: dict[str, Any] | None) -> Iterator[Advice]:
    """Yield what is found by looking at everything. `shown` is what the running daemon's page shows, if one runs."""
    yield from of_logs(config, found, shown)
    yield from of_clock(shown)
    yield from of_versions(found)
    if found.existing is not None:
        yield from _of_kafka(config)
    yield from of_secrets(config)
    yield from of_machine(config)


def of_logs(config: Config, found: Examination, shown: dict[str, Any] | None) -> Iterator[Advice]:
    """Yield advice about members that would soon lack the logs after the checkpoint."""
    if found.known is None or found.known.checkpoint is None:
        return
    needed = start.needed(found.known)
    rate = shown["newest"].get("rows_per_second", 0.0) if shown is not None else 0.0
    for member in found.members:
        answer = member.candidate.answer
        ballot = answer.ballot
        if ballot is None or not ballot.gc_vclock:
            continue
        rows = overview.headroom_rows(needed.logs_from, ballot.gc_vclock, needed.ignored)
        remedy = "raise checkpoint_count there (box.cfg), as far as its disk has room"
        if config.source.mode == "anonymous":
            remedy += ', or choose source.mode = "registered", for which every version keeps the logs'
        if rows < 0:
            sentence = f"the logs of {-rows} rows after the checkpoint are gone: following it means a gap (source.on_gap)"
            yield Advice(
                Harm.LOSS if len(found.members) == 1 else Harm.SOON, answer.address, sentence, _after_a_gap(config) + remedy
            )
        elif rate and rows / rate < OUTAGE_MINUTES_MIN * 60:
            sentence = (
                f"it keeps the logs of {rows} rows before the checkpoint; at the present {rate:.0f} rows/s, a daemon that is "
                f"away for {rows / rate / 60:.1f} minutes may find a gap"
            )
            yield Advice(Harm.SOON, answer.address, sentence, remedy)


def _after_a_gap(config: Config) -> str:
    """Return what to do about a gap that is there, before the words about the next one."""
    if config.source.on_gap == "fail":
        now = 'set source.on_gap = "resnapshot": the next start then takes a snapshot'
    else:
        now = "nothing has to be changed for this one: `run` takes a snapshot"
    return f"{now}, which publishes the rows as they are now, without the changes in between. So that it stays the only one, "


def of_clock(shown: dict[str, Any] | None) -> Iterator[Advice]:
    """Yield advice about a server's clock that differs from this machine's."""
    upstream = shown["status"]["upstream"] if shown is not None else {}
    ahead = upstream.get("clock_ahead_seconds")
    if ahead is not None and abs(ahead) > CLOCK_SECONDS_MAX:
        direction = "ahead of" if ahead > 0 else "behind"
        yield Advice(
            Harm.SOON,
            upstream["address"],
            f"its clock is {abs(ahead):.1f} s {direction} this machine's, so lag_seconds and ts_ms are wrong by that",
            "synchronise both clocks (chrony, systemd-timesyncd)",
        )


def of_versions(found: Examination) -> Iterator[Advice]:
    """Yield advice about versions of Tarantool of which the tests read no whole streams."""
    for member in found.members:
        text = member.candidate.answer.version
        if text is None:
            continue
        numbers = [int(part) for part in text.split("-")[0].split(".")[:2] if part.isdecimal()]
        if tuple(numbers) not in PROVEN:
            yield Advice(
                Harm.NOTE,
                member.candidate.answer.address,
                f"the tests read whole streams of {', '.join(PROVEN.values())}, and this is {text}",
                "try `verify` after some days of work: it compares every row",
            )


def _of_kafka(config: Config) -> Iterator[Advice]:
    clients = KafkaClients(config.name, config.kafka)
    admin = clients.admin()
    try:
        metadata = admin.list_topics(timeout=_ASK_SECONDS)
    except KafkaException as error:
        yield Advice(Harm.WAIT, "kafka", f"its topics can't be listed: {error.args[0].str()}")
        return
    yield from of_replicas(config, metadata)
    limits = broker_limits(admin)
    if limits.transaction_timeout_ms is not None and limits.transaction_timeout_ms < TRANSACTION_TIMEOUT_DEFAULT_MS:
        yield Advice(
            Harm.SOON,
            "transaction.max.timeout.ms",
            f"the brokers end a transaction after {limits.transaction_timeout_ms} ms: a source transaction that takes longer to "
            "publish ends the daemon",
            f"set it to {TRANSACTION_TIMEOUT_DEFAULT_MS} or more on the brokers",
        )
    prefix = f"{config.kafka.topic_prefix}."
    control = {names_of(config.kafka).control(name) for name in topic_settings.KEPT}
    spaces = [topic for topic in metadata.topics if topic.startswith(prefix) and topic not in control]
    yield from of_retention(topic_settings.read(admin, spaces))


def of_replicas(config: Config, metadata: ClusterMetadata) -> Iterator[Advice]:
    """Yield advice about topics that the loss of one disk would lose, and about brokers that are down."""
    prefix = f"{config.kafka.topic_prefix}."
    single = []
    short = []
    for name, topic in sorted(metadata.topics.items()):
        if name.startswith(prefix) or name == _TRANSACTIONS:
            partitions = topic.partitions.values()
            if any(len(partition.replicas) == 1 for partition in partitions):
                single.append(name)
            if any(len(partition.isrs) < len(partition.replicas) for partition in partitions):
                short.append(name)
    if single:
        yield Advice(
            Harm.SOON,
            "kafka.replication_factor",
            f"{len(single)} topics have one replica ({_some(single)}): the loss of one broker's disk loses rows that count as "
            "committed",
            "3 replicas and min.insync.replicas 2 in production: kafka.replication_factor for topics yet to be made, "
            "kafka-reassign-partitions.sh for these, and transaction.state.log.replication.factor on the brokers",
        )
    if short:
        yield Advice(
            Harm.SOON,
            "kafka",
            f"{len(short)} topics have replicas that aren't in sync ({_some(short)}): a broker is down or too slow",
            "start that broker: with one more down, the daemon may stall",
        )


def of_retention(settings: dict[str, topic_settings.Settings]) -> Iterator[Advice]:
    """Yield advice about spaces' topics whose records expire."""
    brief = {}
    for topic, found in sorted(settings.items()):
        policy, kept = found.get("cleanup.policy"), found.get("retention.ms")
        if policy is not None and "delete" in policy.value and kept is not None and int(kept.value) >= 0:
            brief[topic] = int(kept.value)
    if brief:
        least = min(brief.values())
        yield Advice(
            Harm.NOTE,
            "retention.ms",
            f"records of {len(brief)} topics expire, the first after {least / _DAY_MS:.1f} days ({_some(list(brief))}): a "
            "consumer that was away for longer, or begins later, lacks rows",
            "`tarantool-cdc snapshot` publishes a space's rows again; or raise retention.ms",
        )


def of_secrets(config: Config) -> Iterator[Advice]:
    """Yield advice about secrets that others on this machine, or on the way, may read."""
    files = {
        "source.password_file": config.source.password_file,
        "http.tokens_file": config.http.tokens_file,
        "http.tls_key": config.http.tls_key,
        "format.registry.password_file": config.format.registry.password_file,
    }
    for key, file in files.items():
        if file is not None and _may_others_read(file):
            yield Advice(Harm.SOON, key, "other users of this machine may read it", f"chmod 600 {file}")
    address = config.http.address
    if address is not None and config.http.tls_certificate is None and not _is_loopback(address[0]):
        yield Advice(
            Harm.SOON,
            "http.listen",
            f"{address[0]} can be reached from elsewhere, and there is no TLS: tokens and rows can be read on the way",
            "set http.tls_certificate, or listen on 127.0.0.1 behind a proxy that has TLS",
        )


def of_file(file: Path) -> Iterator[Advice]:
    """Yield advice about a configuration file that has secrets in it and that others on this machine may read."""
    if _may_others_read(file) and has_secret(read(file)):
        remedy = f"give it to the daemon's user alone (chmod 600 {file}), or put the secrets into files of their own, such as "
        yield Advice(
            Harm.SOON,
            str(file),
            "other users of this machine may read it, and it has passwords or tokens",
            f"{remedy}source.password_file",
        )


def of_machine(config: Config) -> Iterator[Advice]:
    """Yield advice about this machine."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FILES_MIN:
        yield Advice(
            Harm.NOTE,
            "ulimit -n",
            f"a process may have {files} open files: Kafka's clients need one for each broker, and each open page one",
            "LimitNOFILE=65536 in systemd's unit, if the daemon has the same limit as this command",
        )
    path, reason = path_of(config)
    if path != "native":
        yield Advice(
            Harm.NOTE,
            "row path",
            f"the Python row path would run ({reason}), at several times the CPU time",
            "docs/operations.md (Which row path runs) says how to have the compiled one",
        )


def _may_others_read(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False  # check says so


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, …" if len(names) > len(names[:3]) else shown
