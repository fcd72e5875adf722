"""A fleet's file: that of a daemon, with several replica sets, each of which gets a daemon of its own.

    name = "shop"
    [fleet]
    topics = "shared"                  the shards write the same topics, or "per_shard": each has topics of its own
    [fleet.shards.s1]
    uris = ["cdc:secret@a:3301"]
    [fleet.shards.s2]
    uris = ["cdc:secret@b:3301"]

Everything else is as in a daemon's file, and the same for all shards. Of a shard's daemon the file says, for `kafka.topic_prefix
= "shop"` and the shard `s1`:

    name            shop.s1           also in the transactional id, the checkpoint and the daemon's uuid
    state.path      state/s1
    control topics  shop.s1.checkpoint, shop.s1.schema, …
    spaces' topics  shop.orders if shared, else shop.s1.orders
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from cdc import config
from cdc.config import Config
from cdc.config.mistakes import mistake_message, place_shown
from cdc.config.routing import SHARD, RoutingSection
from cdc.config.section import Section, check_listen
from cdc.config.shard import Shard
from cdc.config.source import Uri
from cdc.errors import ConfigurationError

KEY: Final = "fleet"
_NAME_MAX: Final = 100
_WATCHDOG_MS_MIN: Final = 10_000


def _shard_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", text):
        raise ValueError("the name of a shard may have letters, digits, '_' and '-' only, 63 at most")
    return text


def _listen(text: str) -> str:
    check_listen("http_listen", text)
    return text


Listen = Annotated[str, AfterValidator(_listen)]


def _watchdog(milliseconds: int) -> int:
    if milliseconds and milliseconds < _WATCHDOG_MS_MIN:
        raise ValueError(f"must be {_WATCHDOG_MS_MIN} at least, or 0 for never: a daemon's start may take some seconds")
    return milliseconds


class ShardSection(Section):
    """One replica set of a fleet."""

    uris: list[Uri] = Field(min_length=1)
    """Members of the replica set, as `source.uris` of a daemon."""
    replicaset_name: str | None = Field(None, min_length=1, max_length=63)
    """The replica set's name in the cluster's configuration (`box.info.replicaset.name`, from 3.0 on), if it isn't the shard's:
    vshard's `_bucket` calls replica sets by name where `identification_mode` is `name_as_key`."""
    http_listen: Listen | None = None
    """`http.listen` of this shard's daemon if it runs alone (`--shard`), so that several can run on one machine; by default that
    of `[http]`, where the fleet's process listens otherwise."""


class FleetSection(Section):
    """The replica sets of a fleet, each of which has a daemon of its own."""

    topics: Literal["shared", "per_shard"] = "shared"
    """`shared`: the rows of a space go to one topic, `<prefix>.<space>`, whichever shard they are from. `per_shard`: each shard
    has topics of its own, `<prefix>.<shard>.<space>`."""
    watchdog_ms: Annotated[int, AfterValidator(_watchdog)] = 60_000
    """Time after which the fleet's process kills a shard's daemon that answers nothing (frozen, or stuck), and starts it again:
    10000 at least, as a start may take some seconds, or 0 for never. A daemon that waits for Kafka or a server, or reads a long
    snapshot, answers."""
    shards: dict[Annotated[str, AfterValidator(_shard_name)], ShardSection] = Field(min_length=1)
    """The replica sets by name: letters, digits, `_` and `-`, 63 at most. A shard's name is a part of names of topics, and of its
    daemon's: a renamed shard is a new one."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet's configuration: that of the daemon of each shard, by the shard's name."""

    name: str
    topics: Literal["shared", "per_shard"]
    shards: dict[str, Config]
    watchdog_seconds: float | None = 60.0
    """Time after which a daemon that answers nothing is killed; None: never."""

    @property
    def shared(self) -> Config:
        """The configuration of any daemon, for what is the same for all of them, and http.listen of the fleet's process."""
        return of_fleet_process(next(iter(self.shards.values())))

    def shard(self, name: str) -> Config:
        """Return the configuration of a shard's daemon. Raises ConfigurationError if there is no such shard."""
        if name not in self.shards:
            raise ConfigurationError(f"the fleet {self.name!r} has no shard {name!r}", f"Its shards are {_listed(self.shards)}.")
        return self.shards[name]


def of_fleet_process(config: Config) -> Config:
    """Return the configuration of a shard's daemon with the listener of the fleet's process."""
    shard = config.kafka.shard
    assert shard is not None
    return config.model_copy(update={"http": config.http.model_copy(update={"listen": shard.fleet_listen})})


def load(path: Path) -> Config | Fleet:
    """Read and validate a configuration file, of a daemon or of a fleet. Raises ConfigurationError."""
    values = config.read(path)
    if KEY not in values:
        return _of_daemon(values, path)
    section = _section(values.pop(KEY), str(path))
    _check_source(values, path)
    shards = {name: _of_shard(values, path, name, section) for name in section.shards}
    _check_members(shards)
    _check_replicaset_names(section)
    whole = next(iter(shards.values())).kafka.shard
    assert whole is not None
    watchdog = section.watchdog_ms
    return Fleet(whole.fleet, section.topics, shards, watchdog / 1000 if watchdog else None)


def _of_daemon(values: dict[str, Any], path: Path) -> Config:
    found = config.of_file(values, path)
    try:
        found.routing.check_places()
    except ValueError as error:
        raise ConfigurationError(f"the configuration {path} has mistakes:\n  routing: {error}") from error
    return found


def load_daemon(path: Path, shard: str | None) -> Config:
    """Read the configuration of one daemon: with `shard` that of a fleet's. Raises ConfigurationError."""
    found = load(path)
    if isinstance(found, Fleet):
        if shard is None:
            raise ConfigurationError(
                f"{path} is the file of a fleet, and this command is about one daemon",
                f"Say of which shard with --shard: {_listed(found.shards)}.",
            )
        return found.shard(shard)
    if shard is not None:
        raise ConfigurationError(
            f"{path} is the file of one daemon, and --shard {shard} names one of a fleet's", "Leave --shard out, or add [fleet]."
        )
    return found


def _section(values: Any, origin: str) -> FleetSection:
    try:
        return FleetSection.model_validate(values)
    except ValidationError as error:
        lines = []
        for mistake in error.errors(include_url=False):
            kind, place = mistake["type"], (KEY, *mistake["loc"])
            message = mistake_message(kind, mistake.get("ctx", {}), place, mistake["input"], default="", is_text=False)
            if kind == "extra_forbidden":
                message = "no such key"
            where = place_shown([key for key in place if key != "[key]"])
            lines.append(f"  {where}: {message or mistake['msg'].removeprefix('Value error, ')}")
    # Outside the exception handler: the error contains the values, and the URIs are secrets.
    raise ConfigurationError(f"the configuration {origin} has mistakes:\n" + "\n".join(dict.fromkeys(lines)))


def _check_source(values: dict[str, Any], path: Path) -> None:
    """Raise ConfigurationError if all shards would get the same members."""
    source = values.get("source", {})
    if isinstance(source, dict) and "uris" in source:
        raise ConfigurationError(
            f"the configuration {path} has mistakes:\n  source.uris: a fleet's members are in fleet.shards.<shard>.uris"
        )
    variable = f"{config.ENVIRONMENT_PREFIX}SOURCE__URIS"
    if config.is_set(variable):
        raise ConfigurationError(f"{variable} is set, and would be the members of all shards of a fleet", "Unset it.")


def _of_shard(values: dict[str, Any], path: Path, name: str, section: FleetSection) -> Config:
    source = values.get("source", {})
    uris = [uri.get_secret_value() for uri in section.shards[name].uris]
    own = {**values, "source": {**source, "uris": uris} if isinstance(source, dict) else source}
    found = config.of_file(own, path)
    names = tuple(each.replicaset_name or other for other, each in section.shards.items())
    shard = Shard(
        name, found.name, found.kafka.topic_prefix, tuple(section.shards), section.topics == "shared", names, found.http.listen
    )
    _check_shared(found, shard)
    own_listen = section.shards[name].http_listen
    own_listen = found.http.listen if own_listen is None else own_listen
    if len(f"{found.name}.{name}") > _NAME_MAX:
        raise ConfigurationError(f"the name of the daemon {found.name}.{name} is longer than {_NAME_MAX} characters")
    tap = found.tap.model_copy(
        update={
            "path": found.tap.path / name,
            "store_path": found.tap.store_path / name if found.tap.store_path is not None else None,
        }
    )
    return found.model_copy(
        update={
            "name": f"{found.name}.{name}",
            "kafka": found.kafka.of_shard(shard),
            "state": found.state.model_copy(update={"path": found.state.path / name}),
            "routing": _routing(found.routing, shard),
            "tap": tap,
            "http": found.http.model_copy(update={"listen": own_listen}),
        }
    )


def _check_shared(found: Config, shard: Shard) -> None:
    """Raise ConfigurationError for a format that can't tell the shards apart in one topic."""
    if shard.shares_topics and found.format.envelope == "flat":
        raise ConfigurationError(
            'fleet.topics = "shared" needs format.envelope = "debezium": flat events don\'t say which shard they are from, and a '
            "seq orders only the events of one",
            'Set fleet.topics = "per_shard", or leave format.envelope out.',
        )
    compacted = [rule.pattern for rule in found.kafka.topics if "compact" in rule.config.get("cleanup.policy", "")]
    if shard.shares_topics and compacted:
        raise ConfigurationError(
            f'fleet.topics = "shared" excludes cleanup.policy = "compact" (kafka.topics, pattern = {compacted[0]!r}): when a row '
            "moves to another shard, the tombstone of the one that it leaves may come last, and remove the row",
            'Set fleet.topics = "per_shard", or leave cleanup.policy out.',
        )


def _routing(routing: RoutingSection, shard: Shard) -> RoutingSection:
    """Return the rules with the shard's name for `{shard}`."""
    place = f"{{{SHARD}}}"
    rules = [
        rule if rule.topic is None else rule.model_copy(update={"topic": rule.topic.replace(place, shard.name)})
        for rule in routing.rules
    ]
    return routing.model_copy(update={"rules": rules, "topic": routing.topic.replace(place, shard.name)})


def _check_members(shards: dict[str, Config]) -> None:
    """Raise ConfigurationError if two shards have a member in common: they would publish the same rows."""
    found: dict[tuple[str, int], str] = {}
    for name, shard in shards.items():
        for address in shard.source.addresses():
            other = found.setdefault(address, name)
            if other != name:
                raise ConfigurationError(
                    f"fleet.shards.{other} and fleet.shards.{name} both name the member {address[0]}:{address[1]}: the rows of "
                    "one replica set would be published twice"
                )


def _check_replicaset_names(section: FleetSection) -> None:
    """Raise ConfigurationError if two shards' replica sets have one name."""
    found: dict[str, str] = {}
    for name, each in section.shards.items():
        other = found.setdefault(each.replicaset_name or name, name)
        if other != name:
            raise ConfigurationError(
                f"fleet.shards.{other} and fleet.shards.{name} both have the replica set's name {each.replicaset_name or name!r} "
                "(replicaset_name; by default the shard's): `_bucket` wouldn't say which of them a bucket moves to"
            )


def _listed(shards: dict[str, Config]) -> str:
    return ", ".join(shards)
