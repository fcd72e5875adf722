"""The configuration: one TOML file, whose keys the environment may override. It is validated completely before anything connects.

`TARANTOOL_CDC__KAFKA__TOPIC_PREFIX=shop` overrides `topic_prefix` in `[kafka]`. Secrets may be in a separate file
(`source.password_file`) or in the environment, and are never printed. Relative paths, from the file or the environment, are
relative to the configuration file's directory: the files that a command uses mustn't depend on its working directory.
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
    PrivateAttr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from cdc.config.columns import ColumnsSection
from cdc.config.formats import FormatSection
from cdc.config.http import HttpSection
from cdc.config.lineage import LineageSection
from cdc.config.mistakes import former_key_message, mistake_message, place_shown, unknown_variable_error, wrong_toml
from cdc.config.routing import RoutingSection, TopicSection, TopicSettings
from cdc.config.section import Pattern, Section
from cdc.config.shard import Shard
from cdc.config.source import SourceSection
from cdc.config.tap import TapSection
from cdc.errors import ConfigurationError

ENVIRONMENT_PREFIX: Final = "TARANTOOL_CDC__"


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text):
        raise ValueError("may have letters, digits, '.', '_' and '-' only, 100 at most")
    return text


Name = Annotated[str, AfterValidator(_name)]


class SnapshotSection(Section):
    """When the daemon reads the complete contents of the spaces."""

    mode: Literal["initial", "always", "never", "initial_only", "snapshot_only", "when_needed"] = "initial"
    """`initial`: at the first start; `always`: at each start; `initial_only`: at the first start, then stop; `snapshot_only`: at
    each start, then stop; `when_needed`: at the first start and on any gap; `never`: at the first start only the schema, and
    later only changed rows, if neither the stream nor the state store leads on, or if spaces are newly published."""
    spaces: list[Pattern] = Field(default=[".*"])
    """Regular expressions for the spaces whose rows the first snapshot publishes. Of the others only changes are published."""
    filters: dict[Pattern, str] = Field(default={})
    """By regular expressions for spaces: an expression (CEL) that chooses the rows which the first snapshot publishes, as in
    `{"orders" = "row.status == 'open'"}`. Of the other rows only changes are published. The first pattern that matches counts."""


class SpacesSection(Section):
    """The published spaces."""

    include: list[Pattern] = Field(default=[".*"])
    """Regular expressions that match complete names of spaces. Tarantool's own spaces need a pattern that begins with `_`."""
    exclude: list[Pattern] = Field(default=[])
    """Regular expressions for those of the included spaces that aren't published."""


class StateSection(Section):
    """The daemon's state on disk."""

    path: Path = Path("state")
    """Directory for the state; like all paths, relative to the configuration file's directory. Without images it has a lock, and
    what the daemon must remember if Kafka loses its newest records (`numbers`, `topics`)."""
    images: Literal["full", "none", "source"] = "full"
    """`none`: there is no state store, and events of UPDATE and UPSERT carry their operations (`patch`). `source`: there is none
    either, and the images are those that Tarantool Enterprise writes into its log (`wal_ext`)."""
    flush_interval_ms: int = Field(default=500, ge=0, le=60_000)
    """Maximum lag of the state store behind Kafka. A start reads the changes that the store lacks from the master again."""


class KafkaSection(Section):
    """Destination of the events."""

    bootstrap_servers: str
    """Addresses, as in `a:9092,b:9092`. User and password belong in `kafka.properties`."""
    topic_prefix: Name
    """Prefix of all topics' names, and `source.name` in the events. A prefix belongs to one daemon."""
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """`at_least_once`: events are visible at once, and a restart may repeat whole source transactions."""
    commit_interval_ms: int = Field(default=100, ge=1, le=60_000)
    """Maximum age of a Kafka transaction at its commit while more changes are waiting (see also `commit_bytes_max`). If none are
    waiting, it commits at once (see `commit_pause_ms`)."""
    commit_pause_ms: int = Field(default=30, ge=0, le=60_000)
    """Minimum time between a commit and the next one, even if few changes are waiting. With a smaller value, changes in quick
    succession are visible sooner, and each costs more CPU time, in the daemon and in the brokers."""
    commit_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Bytes of events at which a Kafka transaction commits. A single source transaction may be larger."""
    queue_bytes_max: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Maximum bytes of events that wait for the producer."""
    stalled_after_ms: int = Field(default=15_000, ge=100, le=3_600_000)
    """How long changes may wait without any commit before the daemon reports a stall and isn't ready. A broker that dies or stops
    answering causes a wait of up to broker.session.timeout.ms (9 s) plus 5 s, which should raise no alert."""
    stop_timeout_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """How long a stop waits for Kafka to commit the events in flight; the rest is published at the next start. If a transaction
    had to be left open, the last line of the log says how long readers of committed messages may have to wait."""
    partitions: int = Field(default=4, ge=1, le=10_000)
    """Partitions of each topic of a space that the daemon creates. Adding partitions later moves keys (docs/events.md)."""
    replication_factor: int = Field(default=1, ge=1, le=100)
    """Replicas of topics that the daemon creates; 3 in production."""
    min_insync_replicas: int | None = Field(default=None, ge=1, le=100)
    """Number of replicas that must have a message before it counts as written, for topics that the daemon creates. The default is
    2 for three or more replicas: one broker may then be down, and a committed event is never on a single disk only."""
    message_bytes_max: int = Field(default=32 * 1024 * 1024, ge=1024, le=1_000_000_000)
    """Maximum size of one event, in bytes (librdkafka's limit). The producer's queue, 64 MiB, grows to hold one such message."""
    tombstones: bool = True
    """Whether a record with a null value follows each `d`."""
    transaction_topic: Literal["none", "multi", "all"] = "multi"
    """Which source transactions get BEGIN and END records on `<prefix>.transaction`; `multi`: those with several events."""
    heartbeat_interval_ms: int = Field(default=0, ge=0)
    """Interval at which the position is written to `<prefix>.heartbeat`; 0: never."""
    signal_topic: bool = False
    """Whether the daemon obeys signals on `<prefix>.signal`: requests for rows, and their end or pause. No space may have the
    name `signal` then."""
    notification_topic: bool = False
    """Whether the daemon tells on `<prefix>.notification` how far snapshots and requests for rows have come. No space may have
    the name `notification` then."""
    create_topics: bool = True
    """Whether the daemon creates missing topics; if not, a missing topic is an error."""
    topics: list[TopicSection] = Field(default=[])
    """Other settings for some of the spaces' topics, one `[[kafka.topics]]` each (see below)."""
    properties: dict[str, str | int | float | bool] = Field(default={}, repr=False)
    """librdkafka's own settings. Their values are never shown, because some are secrets."""
    _shard: Shard | None = PrivateAttr(default=None)

    def of_shard(self, shard: Shard) -> KafkaSection:
        """Return the section of the daemon of one of a fleet's replica sets."""
        found = self.model_copy(update={"topic_prefix": shard.fleet_prefix if shard.shares_topics else shard.prefix})
        found._shard = shard
        return found

    @property
    def shard(self) -> Shard | None:
        """The replica set, if the daemon is one of a fleet's."""
        return self._shard

    def shards_of(self, topic: str) -> tuple[str, ...]:
        """Return the names of the fleet's shards that write a space's topic, this daemon's first; none without a fleet."""
        return self._shard.writers_of(topic) if self._shard is not None else ()

    @property
    def control_prefix(self) -> str:
        """Prefix of the control topics, which only this daemon writes."""
        return self.topic_prefix if self._shard is None else self._shard.prefix

    @field_serializer("properties")
    def _properties_are_not_shown(self, properties: dict[str, object]) -> list[str]:
        return sorted(properties)

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers_are_addresses(cls, servers: str) -> str:
        if "@" in servers:
            raise ValueError("must be addresses only, as in a:9092,b:9092; the user belongs in kafka.properties (sasl.username)")
        return servers

    @property
    def optional_topics(self) -> frozenset[str]:
        """Names, after the prefix and a dot, of the control topics that this daemon has and others may lack."""
        wanted = {"signal": self.signal_topic, "notification": self.notification_topic, "buckets": self.has_co_writers}
        return frozenset(name for name, is_on in wanted.items() if is_on)

    @property
    def has_co_writers(self) -> bool:
        """Whether daemons of other shards write transactions to the same topics. They tell each other of their buckets."""
        return self._shard is not None and self._shard.shares_topics and self.delivery == "exactly_once"

    @property
    def insync_replicas(self) -> int:
        """`min_insync_replicas`, or its default for this `replication_factor`."""
        return self.min_insync_replicas or (2 if self.replication_factor > 2 else 1)

    def topic_settings(self, suffix: str) -> TopicSettings:
        """Return the settings for a space's topic, whose name behind the prefix is given."""
        own = next((each for each in self.topics if re.fullmatch(each.pattern, suffix)), TopicSection(pattern=""))
        replicas = own.replication_factor or self.replication_factor
        return TopicSettings(
            partitions=own.partitions or self.partitions,
            replication_factor=replicas,
            insync_replicas=self.min_insync_replicas or (2 if replicas > 2 else 1),
            config=own.config,
        )

    @model_validator(mode="after")
    def _replicas_can_be_in_sync(self) -> KafkaSection:
        if self.insync_replicas > self.replication_factor:
            raise ValueError(
                f"min_insync_replicas = {self.min_insync_replicas} is more than replication_factor = {self.replication_factor}: "
                "nothing could ever be written"
            )
        for own in self.topics:
            replicas = own.replication_factor
            if replicas is not None and self.min_insync_replicas is not None and self.min_insync_replicas > replicas:
                raise ValueError(
                    f"topics, the entry for pattern = {own.pattern!r}: replication_factor = {replicas} is less than "
                    f"min_insync_replicas = {self.min_insync_replicas}: nothing could ever be written"
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
                f"{self.message_bytes_max}: omit the property, or set it to {-(-self.message_bytes_max // 1024)} at least"
            )
        return self


TRANSACTION_TIMEOUT_MAX_MS: Final = 2_147_483_647 - 100
"""Maximum of `transaction.timeout.ms`: librdkafka adds 100 without checking for overflow."""

_PROPERTY_BOUNDS: Final = {
    "queue.buffering.max.kbytes": (1, 2_147_483_647),
    "transaction.timeout.ms": (1_000, TRANSACTION_TIMEOUT_MAX_MS),
}
"""Smallest and largest allowed values of the properties from which the daemon computes something."""

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


class LogSection(Section):
    """The daemon's log, on stderr."""

    format: Literal["auto", "console", "json"] = "auto"
    """`json`: all of stderr is JSON, one object per line, including the error that ends the daemon."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""


class Config(BaseSettings):
    """The complete configuration. Read it with `load`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
    )

    name: Name
    standby: bool = False
    """Wait, while another daemon of this name runs, and take over when it is gone."""
    source: SourceSection
    snapshot: SnapshotSection = SnapshotSection()
    spaces: SpacesSection = SpacesSection()
    columns: ColumnsSection = ColumnsSection()
    routing: RoutingSection = RoutingSection()
    state: StateSection = StateSection()
    kafka: KafkaSection
    format: FormatSection = FormatSection()
    http: HttpSection = HttpSection()
    tap: TapSection = TapSection()
    lineage: LineageSection = LineageSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _origins_can_be_left_out(self) -> Config:
        if self.source.exclude_origins and self.state.images == "full":
            raise ValueError(
                'source.exclude_origins needs state.images = "none" or "source": the state store would keep the old row of a key '
                "that such a member has written, and the images of the key's next change would be wrong"
            )
        return self

    @model_validator(mode="after")
    def _flat_events_have_images(self) -> Config:
        if self.format.envelope == "flat" and self.state.images == "none":
            raise ValueError(
                'format.envelope = "flat" needs state.images = "full": without images, the daemon knows how an UPDATE changes a '
                "row, but not the row"
            )
        return self

    @model_validator(mode="after")
    def _shared_topics_can_be_read(self) -> Config:
        self.routing.check_format(self.format)
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
        """Return the sources of settings: the environment overrides the file, key by key."""
        return env_settings, init_settings


_PATH_PROPERTIES: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "sasl.kerberos.keytab",
)
"""Keys of `kafka.properties` whose values are paths of files."""

_SECRET_KEYS: Final = ("password", "token", "salt", "secret", "sasl.jaas.config", "ssl.key.pem")
"""Ends of the keys whose values are secrets."""
_URI_WITH_PASSWORD: Final = re.compile(r"[^@/]+:[^@]+@")

_NO_PATH: Final = "probe"
"""Value of `ssl.ca.location` that isn't a path: librdkafka then searches for the system's certificates."""


def of_file(values: dict[str, Any], path: Path) -> Config:
    """Validate a file's values. Relative paths in it, or in the environment, are relative to its directory.

    Raises ConfigurationError, which lists every mistake with its key.
    """
    return _with_absolute_paths(parse(values, str(path)), path.absolute().parent)


def is_set(variable: str) -> bool:
    """Return whether the environment has a variable."""
    return variable in os.environ


def read(path: Path) -> dict[str, Any]:
    """Read a configuration file's values. Raises ConfigurationError if that isn't possible."""
    # Errors are raised outside the exception handlers: Python's own errors may contain the complete file, with its secrets.
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
    return values


def has_secret(value: object, key: str = "") -> bool:
    """Return whether a file's values, as `read` returns them, have a password, token or salt in them, not in other files."""
    if isinstance(value, dict):
        return any(has_secret(each, str(name)) for name, each in value.items())
    if isinstance(value, list):
        return any(has_secret(each, key) for each in value)
    return isinstance(value, str) and bool(value) and (key.endswith(_SECRET_KEYS) or bool(_URI_WITH_PASSWORD.match(value)))


def _with_absolute_paths(config: Config, directory: Path) -> Config:
    """Return the configuration with its relative paths resolved against `directory`."""
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
            "columns": config.columns.with_absolute_paths(directory),
            "state": config.state.model_copy(update={"path": directory / config.state.path}),
            "tap": _tap_with_absolute_paths(config.tap, directory),
            "kafka": kafka.model_copy(update={"properties": kafka.properties | files}),
            "http": config.http.with_absolute_paths(directory),
            "format": config.format.model_copy(update={"registry": config.format.registry.with_absolute_paths(directory)}),
        }
    )


def _tap_with_absolute_paths(tap: TapSection, directory: Path) -> TapSection:
    files = {"path": tap.path, "store_path": tap.store_path, "tls_certificate": tap.tls_certificate, "tls_key": tap.tls_key}
    return tap.model_copy(update={name: directory / file for name, file in files.items() if file is not None})


def parse(values: dict[str, Any], origin: str) -> Config:
    """Validate values that were read from `origin`, a file's path. Raises ConfigurationError."""
    unknown_variable = unknown_variable_error(os.environ, ENVIRONMENT_PREFIX, _keys())
    if unknown_variable is not None:
        raise ConfigurationError(*unknown_variable)
    try:
        return Config(**values)
    except SettingsError as error:
        problem = f"the environment holds a value that can't be read: {error}"
        hint = f"Lists and tables are JSON there: {ENVIRONMENT_PREFIX}SOURCE__URIS='[\"user:password@host:3301\"]'."
    except ValidationError as error:
        problem, hint = f"the configuration {origin} has mistakes:\n{_mistakes(error)}", ""
    # Outside the exception handlers: these errors contain the values, and some values are secrets.
    raise ConfigurationError(problem, hint)


def _mistakes(error: ValidationError) -> str:
    """Return one line per mistake: the key, the mistake, and the variable if the value came from the environment."""
    lines = []
    for mistake in error.errors(include_url=False):
        kind, place = mistake["type"], mistake["loc"]
        variable = ENVIRONMENT_PREFIX + "__".join(str(part) for part in place).upper()
        is_variable = variable in os.environ
        message = mistake_message(
            kind, mistake.get("ctx", {}), place, mistake["input"], default=_default_of(place), is_text=is_variable
        )
        if kind == "extra_forbidden":
            message = former_key_message(place) or "no such key" + _suggestion(place)
        origin = f" (from the environment, {variable})" if is_variable else ""
        if place[:2] == ("kafka", "properties") and len(place) > _DEPTH_OF_PROPERTY:
            place, message = place[:_DEPTH_OF_PROPERTY], "must be a string, a number, true or false"
        lines.append(f"  {place_shown(place)}: {message or mistake['msg'].removeprefix('Value error, ')}{origin}")
    return "\n".join(dict.fromkeys(lines))


_DEPTH_OF_PROPERTY: Final = 3


def _default_of(place: Sequence[int | str]) -> str:
    """Return `": N"` with a key's default N, as an example, if the default is a number; else an empty string."""
    section = Config.model_fields.get(str(place[0])) if place else None
    kind = section.annotation if section is not None else None
    if len(place) != len(("section", "key")) or not (isinstance(kind, type) and issubclass(kind, Section)):
        return ""
    field = kind.model_fields.get(str(place[1]))
    return f": {field.default}" if field is not None and isinstance(field.default, int) else ""


def _suggestion(place: Sequence[int | str]) -> str:
    """Return "; did you mean …?" with a similar key of the same section, or the same key of other sections; empty if there is
    none."""
    *sections, wrong = (str(part) for part in place)
    known = _keys()
    here = {key.rpartition(".")[2]: key for key in known if key.split(".")[:-1] == sections}
    alike = difflib.get_close_matches(wrong, here, n=1, cutoff=0.7)
    found = [here[alike[0]]] if alike else [key for key in known if key.rpartition(".")[2] == wrong]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _keys() -> list[str]:
    """Return all keys with their sections, and the names of the sections."""
    found = list(Config.model_fields)
    for section, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found += _keys_of(section, kind)
    return found


def _keys_of(section: str, kind: type[Section]) -> list[str]:
    found = []
    for key, field in kind.model_fields.items():
        found.append(f"{section}.{key}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += _keys_of(f"{section}.{key}", field.annotation)
    return found
