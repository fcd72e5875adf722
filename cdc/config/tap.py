"""The section `[tap]`: the settings of the memcached TAP server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.config.section import Pattern, Section, address_of, check_listen

KEY_FIELD: Final = re.compile(r"\{([^{}]*)\}")
"""Placeholder of a field in `tap.key`."""


def _key_template(template: str) -> str:
    rest = KEY_FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise ValueError(f"{template!r} has a brace that isn't one of a pair")
    if "" in KEY_FIELD.findall(template):
        raise ValueError(f"{template!r} has a pair of braces without a field's name in it")
    if not set(KEY_FIELD.findall(template)) - {"space"}:
        raise ValueError(f"{template!r} names no field, so all rows of a space would have the same key")
    return template


class TapClient(Section):
    """Restriction of the spaces that some clients receive."""

    name: Pattern
    """Regular expression that matches the client's complete name."""
    spaces: list[Pattern]
    """Spaces of `tap.spaces` that these clients receive, as regular expressions."""


class TapSection(Section):
    """The memcached TAP server: `tarantool-cdc tap`, a separate process."""

    listen: str = "127.0.0.1:11210"
    """Address to listen on; empty: none. Without `users`, every client that can connect may read everything that is served."""
    spaces: list[Pattern] = Field(default=[".*"])
    """Served spaces, of those that the daemon publishes: regular expressions that match complete names."""
    key: Annotated[str, AfterValidator(_key_template)] = "{space}:{key}"
    """Template of the keys. Placeholders: `{space}`, `{key}` (the primary key's values joined by `:`), and any field of the row
    by its name."""
    value: Literal["json", "msgpack"] = "json"
    """Encoding of the values. `json`: the row as in `after`; `msgpack`: a MessagePack array, with the tuple's own bytes where
    they are known (docs/tap.md)."""
    session_timeout_ms: int = Field(default=600_000, ge=1_000, le=30 * 86_400_000)
    """How long a named client may stay disconnected and still resume where it was."""
    clients: list[TapClient] = Field(default=[])
    """Clients that receive fewer spaces: the first entry whose `name` matches a client's name applies to the client."""
    path: Path = Path("tap")
    """Directory for the clients' sessions, relative to the configuration file's directory."""
    store_path: Path | None = None
    """Directory for the server's own store, which it fills from the topics and from which it fills clients. Set it if the server
    can't read the daemon's store. Relative to the configuration file's directory."""
    vbuckets: int = Field(default=1024, ge=1, le=32_768)
    """Number of vbuckets, a power of two."""
    clients_max: int = Field(default=2_000, ge=1, le=60_000)
    """Maximum number of simultaneous connections; the server refuses further ones."""
    buffer_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Memory for the newest changes, shared by all clients, in bytes. A client that falls behind these changes is disconnected,
    and may reconnect."""
    unacked_bytes_max: int = Field(default=4 * 1024 * 1024, ge=64 * 1024)
    """Maximum bytes sent to one client that it hasn't acknowledged."""
    stall_timeout_ms: int = Field(default=60_000, ge=100, le=3_600_000)
    """Time after which a client that receives or acknowledges nothing is disconnected; its session is kept."""
    noop_interval_ms: int = Field(default=20_000, ge=100, le=3_600_000)
    """Interval at which the server sends a NOOP to a client if it has nothing else to send."""
    view_ms_max: int = Field(default=5_000, ge=100, le=600_000)
    """How long the server reads one view of the daemon's store. The store's file may grow meanwhile, because freed pages aren't
    reused until the view is closed."""
    users: dict[str, SecretStr] = Field(default={})
    """Names and passwords for SASL PLAIN. If there are any, clients must log in before they receive anything."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain. If it is set, the server accepts only TLS connections."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, if it isn't in `tls_certificate`."""
    http: str = "127.0.0.1:8086"
    """Address of the TAP server's own HTTP server for /metrics, /health and /status; empty: none."""

    @model_validator(mode="after")
    def _fits_together(self) -> TapSection:
        for name, text in (("listen", self.listen), ("http", self.http)):
            check_listen(name, text)
        if self.vbuckets & (self.vbuckets - 1):
            raise ValueError(f"vbuckets = {self.vbuckets} is not a power of two")
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate")
        for user, password in self.users.items():
            # SASL PLAIN separates them by NUL; with an empty password, nobody may log in.
            if not password.get_secret_value() or "\0" in user + password.get_secret_value():
                raise ValueError(f"users: {user!r} can't log in: the password is empty, or the name or password has a NUL")
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`, or None if it is empty."""
        return address_of(self.listen)

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of `http`, or None if it is empty."""
        return address_of(self.http)
