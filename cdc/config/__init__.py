"""The configuration: one TOML file, any key overridden by the environment, validated whole before anything connects.

`TARANTOOL_CDC__KAFKA__TOPIC_PREFIX=shop` overrides `topic_prefix` in `[kafka]`. Secrets may stand in a file of their own
(`source.password_file`) or in the environment, and are never printed. A relative path, from wherever it comes, begins at the
configuration's directory: what a command finds mustn't depend on the directory that it is started in.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from cdc.config.member_uri import parts_of_uri
from cdc.config.mistakes import place_shown, unread_variable, what_is_wrong, wrong_toml
from cdc.config.section import Pattern, Section, address_of, check_listen
from cdc.config.tap import TapSection
from cdc.errors import ConfigurationError
from cdc.positions.vclock import VCLOCK_MAX

ENVIRONMENT_PREFIX: Final = "TARANTOOL_CDC__"


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text):
        raise ValueError("may have letters, digits, '.', '_' and '-' only, 100 at most")
    return text


def _origin(number: int) -> int:
    if not 0 < number < VCLOCK_MAX:
        raise ValueError(f"is no id of a member: they are 1 to {VCLOCK_MAX - 1}")
    return number


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", text):
        raise ValueError("is no name of a host; it has neither a port nor a scheme")
    return text


def _instance_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", text):
        raise ValueError("begins with a small letter, and has small letters, digits, '_' and '-' only, 63 at most")
    return text


Name = Annotated[str, AfterValidator(_name)]
HostName = Annotated[str, AfterValidator(_host_name)]
InstanceName = Annotated[str, AfterValidator(_instance_name)]
ReplicaId = Annotated[int, AfterValidator(_origin)]


class Member:
    """One server's address and who to be there."""

    __slots__ = ("host", "password", "port", "user")

    def __init__(self, host: str, port: int, user: str, password: SecretStr | None) -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password

    @property
    def address(self) -> str:
        """Without the secret."""
        return f"{self.host}:{self.port}"


def _uri(uri: SecretStr) -> SecretStr:
    parts_of_uri(uri.get_secret_value())
    return uri


class SourceSection(Section):
    """Where rows come from."""

    uris: list[Annotated[SecretStr, AfterValidator(_uri)]] = Field(min_length=1)
    """Members of one replica set, one or more: `["user:password@host:port"]`; `%XX` is a byte, all else stands for itself."""
    user: str | None = None
    """For URIs that have none; by default `guest`."""
    password: SecretStr | None = None
    """For URIs that have none."""
    password_file: Path | None = None
    """Holds that password; all of it counts but one line end."""
    mode: Literal["anonymous", "registered"] = "anonymous"
    """`registered`: a member of the replica set with an id, for which every version of the server keeps the logs."""
    instance_name: InstanceName | None = None
    """What a registered daemon is called in `_cluster` (3.0 and later). No other instance may have the name: it would lose it."""
    on_gap: Literal["resnapshot", "fail"] = "resnapshot"
    """What to do where the server no longer has the logs after the checkpoint."""
    on_divergence: Literal["fail", "resnapshot"] = "fail"
    """What to do where the server lacks changes that were published."""
    prefer: Literal["replica", "leader", "order"] = "order"
    """Of several members that could be followed: the first that is read-only, that is writable, or the first of `uris`."""
    divergence_wait_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """Where none of several members has what is needed: how long one may lag, load or be away until the policies apply."""
    survey_interval_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    """How often every member is asked for its ballot, for /status, /metrics and a gap that the stream doesn't show yet. 0: only
    when one is to be chosen among several, or the followed one of several has fallen silent."""
    vote_timeout_ms: int = Field(default=1_000, ge=50, le=60_000)
    """For connect, greeting and ballot together. Who takes longer counts as unreachable where there are several members."""
    probe_after_ms: int = Field(default=1_250, ge=100)
    """Of several members: after so much silence of the followed one it is asked for its ballot over another connection, and left
    if it doesn't answer and another can be followed. A master that is well sends a heartbeat each second."""
    exclude_origins: list[ReplicaId] = Field(default=[])
    """Ids of members whose own changes the server is not to send."""
    ack_interval_ms: int = Field(default=500, ge=10, le=60_000)
    """How often the master is told what is durable; less than four times its `replication_timeout`."""
    quorum_alert_ms: int = Field(default=10_000, ge=100, le=86_400_000)
    """A synchronous transaction that waits for its quorum for longer is an error in /status: twice what a leader gives it by
    default (replication_synchro_timeout)."""
    silence_timeout_ms: int = Field(default=10_000, ge=100)
    """A server that sends nothing for so long is left, even if it answers otherwise."""
    frame_bytes_max: int = Field(default=256 * 1024 * 1024, ge=1024)
    """The longest packet that is taken."""
    transaction_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Past it a transaction waits for its end on disk, and so do transactions that wait for their quorum."""

    @model_validator(mode="after")
    def _uris_can_be_read(self) -> SourceSection:
        addresses = [member.address for member in self._without_passwords()]
        if len(set(addresses)) < len(addresses):
            raise ValueError("uris names a member twice")
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other")
        if self.instance_name is not None and self.mode != "registered":
            raise ValueError('instance_name needs mode = "registered": an anonymous replica has no name in the replica set')
        return self

    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports in order."""
        return [(member.host, member.port) for member in self._without_passwords()]

    def members(self) -> list[Member]:
        """The servers in order. Raises ConfigurationError if the password's file can't be read."""
        password = self.password if self.password_file is None else _password_in(self.password_file)
        return [self._member(uri.get_secret_value(), password) for uri in self.uris]

    def _without_passwords(self) -> list[Member]:
        return [self._member(uri.get_secret_value(), None) for uri in self.uris]

    def _member(self, uri: str, password: SecretStr | None) -> Member:
        """A member with its own user and password, or with those of the section."""
        host, port, user, own_password = parts_of_uri(uri)
        own = SecretStr(own_password) if own_password else password
        return Member(host, port, user or self.user or "guest", own)


def _password_in(file: Path) -> SecretStr:
    """What a file holds but for one line end at its end. Bytes that aren't UTF-8 stay what they are.

    Raises ConfigurationError, which doesn't name the file: it may be a password that was put into the wrong key.
    """
    problem = ""
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except (OSError, ValueError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or "that is no name of a file"
    if problem:
        raise ConfigurationError(f"source.password_file can't be read: {problem}", "Name a file that this user may read.")
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise ConfigurationError("source.password_file is empty", "Put the password into it, or leave the key out for none.")
    return SecretStr(password)


class SnapshotSection(Section):
    """When the contents are read as a whole."""

    mode: Literal["initial", "always", "never", "initial_only", "when_needed"] = "initial"
    """`always`: at each start; `never`: the schema only at first, and later what has changed, where neither the stream nor the
    state store leads on or spaces are newly published; `initial_only`: then stop;
    `when_needed`: at first and on any gap."""


class SpacesSection(Section):
    """What is published."""

    include: list[Pattern] = Field(default=[".*"])
    """Regular expressions over whole names of spaces; Tarantool's own need a pattern that begins with `_`."""
    exclude: list[Pattern] = Field(default=[])
    """Of those, the ones that aren't published."""


class StateSection(Section):
    """What the daemon keeps on disk."""

    path: Path = Path("state")
    """Relative to the configuration's directory, as all paths are."""
    images: Literal["full", "none"] = "full"
    """`none`: no store; UPDATE and UPSERT carry their operations."""
    flush_interval_ms: int = Field(default=500, ge=0, le=60_000)
    """How long the store of images may be behind Kafka; a start reads what it lacks from the master again."""


class KafkaSection(Section):
    """Where events go."""

    bootstrap_servers: str
    """`a:9092,b:9092`; who to be there is in `kafka.properties`."""
    topic_prefix: Name
    """Of all topics, and the events' `source.name`. It belongs to one daemon."""
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """`at_least_once`: visible at once, and a restart may repeat whole source transactions."""
    commit_interval_ms: int = Field(default=100, ge=1, le=60_000)
    """When a Kafka transaction commits at the latest while more waits, or by `commit_bytes_max`; where nothing waits it does at
    once (`commit_pause_ms`)."""
    commit_pause_ms: int = Field(default=30, ge=0, le=60_000)
    """How long after a commit the next one comes at the earliest, however little waits. With less, changes that follow one
    another closely are visible sooner, and each costs more time of the processors, here and of the brokers."""
    commit_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Of events in one Kafka transaction, as long as it is of several source transactions."""
    queue_bytes_max: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Events that may wait for the producer."""
    stalled_after_ms: int = Field(default=15_000, ge=100, le=3_600_000)
    """How long changes may wait while nothing is committed until the daemon says that it isn't ready. A broker that dies or falls
    silent costs up to its session's time (broker.session.timeout.ms, 9 s) and 5 s, and is no reason to wake anybody."""
    stop_timeout_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """How long a stop waits for Kafka to take what is on its way; what it doesn't take is published at the next start. If a
    transaction had to be left open, the last line says for how long readers of committed messages may have to wait."""
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Of topics that the daemon creates; adding partitions later moves keys (docs/events.md)."""
    replication_factor: int = Field(default=1, ge=1, le=100)
    """Of topics that the daemon creates; 3 in production."""
    min_insync_replicas: int | None = Field(default=None, ge=1, le=100)
    """How many replicas must have a message before it counts as written, of topics that the daemon creates. By default two where
    there are three or more, so that one broker may be away and no single disk is the only one with a committed event."""
    message_bytes_max: int = Field(default=32 * 1024 * 1024, ge=1024, le=1_000_000_000)
    """Of one event; the bound is librdkafka's. The producer's queue, 64 MiB, grows to hold one message of that size."""
    tombstones: bool = True
    """A null value after each `d`."""
    transaction_topic: Literal["none", "multi", "all"] = "multi"
    """BEGIN and END on `<prefix>.transaction`; `multi`: of source transactions with several events."""
    heartbeat_interval_ms: int = Field(default=0, ge=0)
    """How often the position is written to `<prefix>.heartbeat`; 0: never."""
    create_topics: bool = True
    """False: a missing topic is an error."""
    properties: dict[str, str | int | float | bool] = Field(default={}, repr=False)
    """librdkafka's own settings. Some are secrets, so none of them is shown."""

    @field_serializer("properties")
    def _properties_are_not_shown(self, properties: dict[str, object]) -> list[str]:
        return sorted(properties)

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers_are_addresses(cls, servers: str) -> str:
        if "@" in servers:
            raise ValueError("has addresses alone, as in a:9092,b:9092; who to be there is in kafka.properties (sasl.username)")
        return servers

    @property
    def insync_replicas(self) -> int:
        """`min_insync_replicas`, or what it is by default."""
        return self.min_insync_replicas or (2 if self.replication_factor > 2 else 1)

    @model_validator(mode="after")
    def _replicas_can_be_in_sync(self) -> KafkaSection:
        if self.insync_replicas > self.replication_factor:
            raise ValueError(
                f"min_insync_replicas = {self.min_insync_replicas} of replication_factor = {self.replication_factor} replicas: "
                "nothing could ever be written"
            )
        return self

    @model_validator(mode="after")
    def _properties_are_not_ours(self) -> KafkaSection:
        taken = sorted(_OWN_PROPERTIES & self.properties.keys())
        if taken:
            raise ValueError(f"properties may not set {', '.join(taken)}: the daemon's guarantees rest on them")
        return self

    @model_validator(mode="after")
    def _properties_fit(self) -> KafkaSection:
        for name, (least, most) in _PROPERTY_BOUNDS.items():
            given = self.properties.get(name)
            if given is not None and not (str(given).isdecimal() and least <= int(given) <= most):
                raise ValueError(f"properties: {name} must be a number from {least} to {most}")
        queue = self.properties.get("queue.buffering.max.kbytes")
        if queue is not None and int(queue) * 1024 < self.message_bytes_max:
            raise ValueError(
                f"properties: queue.buffering.max.kbytes = {queue} has no room for a message of message_bytes_max = "
                f"{self.message_bytes_max}: leave it out, or make it {-(-self.message_bytes_max // 1024)} at least"
            )
        return self


TRANSACTION_TIMEOUT_MAX_MS: Final = 2_147_483_647 - 100
"""librdkafka adds 100 without looking."""

_PROPERTY_BOUNDS: Final = {
    "queue.buffering.max.kbytes": (1, 2_147_483_647),
    "transaction.timeout.ms": (1_000, TRANSACTION_TIMEOUT_MAX_MS),
}
"""Of those that something here is computed from."""

_OWN_PROPERTIES: Final = frozenset(
    {
        "bootstrap.servers",
        "transactional.id",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "isolation.level",
        "delivery.report.only.error",
        "partitioner",
        "message.max.bytes",
    }
)


class FormatSection(Section):
    """What events look like."""

    value: Literal["json"] = "json"
    """How keys and values are written."""
    on_error: Literal["fail", "dlq"] = "fail"
    """`dlq`: rows that can't be encoded go to `<prefix>.dlq`."""
    on_image_error: Literal["fail", "dlq"] = "fail"
    """`dlq`: so do UPDATEs and UPSERTs that can't be carried out; their keys are doubtful until they are written anew."""


class HttpSection(Section):
    """Where the daemon can be looked at."""

    listen: str = "127.0.0.1:8085"
    """Empty: nowhere. Whoever can connect may read it and ask for rows again: there is no password."""
    allowed_hosts: list[HostName] = Field(default=[])
    """Names under which it may be asked, beside IP addresses, localhost and the one in `listen`."""

    @model_validator(mode="after")
    def _address_can_be_read(self) -> HttpSection:
        check_listen("listen", self.listen)
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, None to listen nowhere."""
        return address_of(self.listen)


class LogSection(Section):
    """What the daemon says of itself on stderr."""

    format: Literal["auto", "console", "json"] = "auto"
    """`json`: all of stderr is JSON, one object a line, the error that ends the daemon too."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is said."""


class Config(BaseSettings):
    """The whole configuration. Read it with `load`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
    )

    name: Name
    source: SourceSection
    snapshot: SnapshotSection = SnapshotSection()
    spaces: SpacesSection = SpacesSection()
    state: StateSection = StateSection()
    kafka: KafkaSection
    format: FormatSection = FormatSection()
    http: HttpSection = HttpSection()
    tap: TapSection = TapSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _origins_can_be_left_out(self) -> Config:
        if self.source.exclude_origins and self.state.images != "none":
            raise ValueError(
                'source.exclude_origins needs state.images = "none": a key that such a member has written would be kept here as '
                "it was before, and the next change's images would be wrong"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, key by key."""
        return env_settings, init_settings


_PATH_PROPERTIES: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "sasl.kerberos.keytab",
)
"""Keys of kafka.properties that name files."""

_NO_PATH: Final = "probe"
"""With `ssl.ca.location` it has librdkafka look for the system's certificates."""


def load(path: Path) -> Config:
    """Read and validate a configuration file; relative paths in it, or in the environment, begin at its directory.

    Raises ConfigurationError that lists every mistake with its key.
    """
    # Errors are raised behind their handlers: what Python's errors hold beside their text may be the whole file.
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problem, hint = f"can't be read: {error.strerror}", "Name one with --config; config/ has examples."
    except UnicodeDecodeError as error:
        problem, hint = f"isn't TOML: it isn't UTF-8 from byte {error.start} on", ""
    except tomllib.TOMLDecodeError as error:
        problem, hint = f"isn't TOML: {error}", wrong_toml(str(error))
    else:
        problem = hint = ""
    if problem:
        raise ConfigurationError(f"the configuration {path} {problem}", hint)
    return _placed(parse(values, str(path)), path.absolute().parent)


def _placed(config: Config, directory: Path) -> Config:
    """The configuration with its relative paths as they are seen from `directory`."""
    source, kafka = config.source, config.kafka
    if source.password_file is not None:
        source = source.model_copy(update={"password_file": directory / source.password_file})
    files = {
        key: str(directory / value)
        for key, value in kafka.properties.items()
        if key in _PATH_PROPERTIES and isinstance(value, str) and value not in ("", _NO_PATH)
    }
    return config.model_copy(
        update={
            "source": source,
            "state": config.state.model_copy(update={"path": directory / config.state.path}),
            "tap": _placed_tap(config.tap, directory),
            "kafka": kafka.model_copy(update={"properties": kafka.properties | files}),
        }
    )


def _placed_tap(tap: TapSection, directory: Path) -> TapSection:
    files = {"path": tap.path, "store_path": tap.store_path, "tls_certificate": tap.tls_certificate, "tls_key": tap.tls_key}
    return tap.model_copy(update={name: directory / file for name, file in files.items() if file is not None})


def parse(values: dict[str, Any], origin: str) -> Config:
    """Validate values that `origin` gave. Raises ConfigurationError."""
    unread = unread_variable(os.environ, ENVIRONMENT_PREFIX, _keys())
    if unread is not None:
        raise ConfigurationError(*unread)
    try:
        return Config(**values)
    except SettingsError as error:
        problem = f"the environment holds a value that can't be read: {error}"
        hint = f"Lists and tables are JSON there: {ENVIRONMENT_PREFIX}SOURCE__URIS='[\"user:password@host:3301\"]'."
    except ValidationError as error:
        problem, hint = f"the configuration {origin} has mistakes:\n{_mistakes(error)}", ""
    # Behind the handlers: what these errors hold beside their text are the values, of which some are secrets.
    raise ConfigurationError(problem, hint)


def _mistakes(error: ValidationError) -> str:
    """One line per mistake: key, what is wrong, and where the value came from if it was the environment."""
    lines = []
    for mistake in error.errors(include_url=False):
        kind, place = mistake["type"], mistake["loc"]
        variable = ENVIRONMENT_PREFIX + "__".join(str(part) for part in place).upper()
        is_variable = variable in os.environ
        message = what_is_wrong(
            kind, mistake.get("ctx", {}), place, mistake["input"], default=_default_of(place), is_text=is_variable
        )
        if kind == "extra_forbidden":
            message = "no such key" + _suggestion(place)
        origin = f" (from the environment, {variable})" if is_variable else ""
        if place[:2] == ("kafka", "properties") and len(place) > _DEPTH_OF_PROPERTY:
            place, message = place[:_DEPTH_OF_PROPERTY], "must be a string, a number, true or false"
        lines.append(f"  {place_shown(place)}: {message or mistake['msg'].removeprefix('Value error, ')}{origin}")
    return "\n".join(dict.fromkeys(lines))


_DEPTH_OF_PROPERTY: Final = 3


def _default_of(place: Sequence[int | str]) -> str:
    """The number that a key has where nothing is said, as an example."""
    section = Config.model_fields.get(str(place[0])) if place else None
    kind = section.annotation if section is not None else None
    if len(place) != len(("section", "key")) or not (isinstance(kind, type) and issubclass(kind, Section)):
        return ""
    field = kind.model_fields.get(str(place[1]))
    return f": {field.default}" if field is not None and isinstance(field.default, int) else ""


def _suggestion(place: Sequence[int | str]) -> str:
    """The key that was probably meant: one of the same section that looks like it, or one of its name in another section."""
    *sections, wrong = (str(part) for part in place)
    known = _keys()
    here = {key.rpartition(".")[2]: key for key in known if key.split(".")[:-1] == sections}
    alike = difflib.get_close_matches(wrong, here, n=1, cutoff=0.7)
    found = [here[alike[0]]] if alike else [key for key in known if key.rpartition(".")[2] == wrong]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _keys() -> list[str]:
    """All keys, and the names of the sections."""
    found = list(Config.model_fields)
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found += [f"{section}.{key}" for key in kind.model_fields]
    return found
