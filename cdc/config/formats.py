"""The sections `[format]` and `[format.registry]`: the formats of the events, and the registry of their schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, field_serializer, model_validator

from cdc.config.password_file import password_in
from cdc.config.section import Section

_REGISTERED: Final = frozenset({"avro", "protobuf", "json_schema_registry"})
"""Formats whose messages name a schema by the id that a registry has given it."""

_OWN_PROPERTIES: Final = frozenset({"url", "timeout", "max.retries", "cache.capacity", "cache.latest.ttl.sec"})
_PATH_PROPERTIES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
"""Keys of `format.registry.properties` whose values are paths of files."""


class RegistrySection(Section):
    """The registry of schemas, for the formats that need one. It has the API of Confluent's Schema Registry."""

    url: str | None = None
    """Address, as in `http://127.0.0.1:8081`. User and password belong in the keys below."""
    subject: Literal["topic", "record", "topic_record"] = "topic"
    """Subject of a schema: `<topic>-key` and `<topic>-value`, the schema's full name, or both."""
    auto_register: bool = True
    """Whether the daemon registers schemas; if not, the registry must have exactly the daemon's schema."""
    user: str | None = None
    """User to log in with."""
    password: SecretStr | None = None
    """Password of that user."""
    password_file: Path | None = None
    """File with that password. One line end at the file's end is ignored."""
    properties: dict[str, str] = Field(default={}, repr=False)
    """Other settings of confluent-kafka's `SchemaRegistryClient`, such as `ssl.ca.location`. Their values are never shown."""

    @field_serializer("properties")
    def _properties_are_not_shown(self, properties: dict[str, object]) -> list[str]:
        return sorted(properties)

    @model_validator(mode="after")
    def _can_be_used(self) -> RegistrySection:
        if self.url is not None and not re.fullmatch(r"https?://[^\s@]+", self.url):
            raise ValueError(
                "url must be an address as in http://127.0.0.1:8081, without a user, which belongs in user and password"
            )
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other")
        if self.user is None and (self.password is not None or self.password_file is not None):
            raise ValueError("password and password_file need user")
        taken = sorted(
            self.properties.keys() & (_OWN_PROPERTIES | ({"basic.auth.user.info"} if self.user is not None else set()))
        )
        if taken:
            raise ValueError(f"properties may not set {', '.join(taken)}: the daemon sets that itself")
        return self

    def client_settings(self) -> dict[str, str]:
        """Return the settings of the client, secrets included. Raises ConfigurationError if the password file can't be read."""
        assert self.url is not None
        found = {"url": self.url, **self.properties}
        if self.user is not None:
            password = self.password
            if self.password_file is not None:
                password = password_in(self.password_file, "format.registry.password_file")
            found["basic.auth.user.info"] = f"{self.user}:{password.get_secret_value() if password is not None else ''}"
        return found

    def with_absolute_paths(self, directory: Path) -> RegistrySection:
        """Return the section with its relative paths resolved against `directory`."""
        files = {key: str(directory / self.properties[key]) for key in _PATH_PROPERTIES if self.properties.get(key)}
        update: dict[str, Any] = {"properties": self.properties | files}
        if self.password_file is not None:
            update["password_file"] = directory / self.password_file
        return self.model_copy(update=update)


class FormatSection(Section):
    """Format of the events."""

    key: Literal["json", "json_schema", "avro", "protobuf", "json_schema_registry"] = "json"
    """Encoding of keys. `json_schema`: `{"schema":…,"payload":…}`, as Kafka Connect's JsonConverter reads it; `avro`,
    `protobuf` and `json_schema_registry`: Avro, Protobuf and JSON in Confluent's wire form, whose schemas a registry has."""
    value: Literal["json", "json_schema", "avro", "protobuf", "json_schema_registry"] = "json"
    """Encoding of values, independent of the keys'. The compiled row path makes `json` and `avro`, the Python one the others."""
    envelope: Literal["debezium", "flat"] = "debezium"
    """Form of the values. `flat`: the row's fields with `__op`, `__deleted` and `__source_seq` (docs/events.md), made by the
    Python row path."""
    source: Literal["full", "lean"] = "full"
    """Fields of `source` in each event. `lean`: a few, and no `transaction` (docs/events.md). The Spark jobs and the TAP
    server need `full`."""
    unsigned: Literal["long", "decimal", "string"] = "long"
    """Type of fields of the types `unsigned` and `uint64` in formats with a schema. `long`: an integer of 64 bits with a sign;
    rows with a value past 2^63-1 are refused (see `on_error`)."""
    decimal: Literal["variable", "string"] = "variable"
    """Type of decimals in formats with a schema. `variable`: Debezium's VariableScaleDecimal."""
    on_error: Literal["fail", "dlq"] = "fail"
    """Policy for rows that can't be encoded, or have no valid primary key. `dlq`: they go to `<prefix>.dlq`."""
    on_image_error: Literal["fail", "dlq"] = "fail"
    """Policy for UPDATEs and UPSERTs that can't be applied. `dlq`: they go to `<prefix>.dlq`, and their keys are doubtful until
    the next INSERT, REPLACE or DELETE of each."""
    registry: RegistrySection = RegistrySection()
    """The registry's section, below."""

    @property
    def needs_registry(self) -> bool:
        """Whether keys or values refer to schemas in a registry."""
        return bool({self.key, self.value} & _REGISTERED)

    @model_validator(mode="after")
    def _fit_together(self) -> FormatSection:
        if self.needs_registry and self.registry.url is None:
            name = "value" if self.value in _REGISTERED else "key"
            raise ValueError(f'{name} = "{getattr(self, name)}" needs the registry\'s address: set url in [format.registry]')
        if self.envelope == "flat" and self.source != "full":
            raise ValueError('source has no effect with envelope = "flat", whose events have no source: leave source out')
        for key in ("unsigned", "decimal"):
            if getattr(self, key) != type(self).model_fields[key].default and self.key == "json" and self.value == "json":
                raise ValueError(
                    f'{key} has no effect on "json", which writes all numbers as they are: leave {key} out, or set key or value '
                    "to a format with a schema"
                )
        return self
