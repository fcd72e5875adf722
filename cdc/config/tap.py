"""The section `[tap]`: what the memcached TAP server serves, and to whom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.config.section import Pattern, Section, address_of, check_listen

KEY_FIELD: Final = re.compile(r"\{([^{}]*)\}")
"""What stands for a field in `tap.key`."""


def _key_template(template: str) -> str:
    rest = KEY_FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise ValueError(f"{template!r} has a brace that isn't one of a pair")
    if "" in KEY_FIELD.findall(template):
        raise ValueError(f"{template!r} has a pair of braces without a field's name in it")
    if not set(KEY_FIELD.findall(template)) - {"space"}:
        raise ValueError(f"{template!r} names no field, so that all rows would have one key")
    return template


class TapClient(Section):
    """What clients of some names get."""

    name: Pattern
    """Of the client: a regular expression over the whole of it."""
    spaces: list[Pattern]
    """What they get of `tap.spaces`."""


class TapSection(Section):
    """What the memcached TAP server serves: `tarantool-cdc tap`, a process of its own."""

    listen: str = "127.0.0.1:11210"
    """Empty: nowhere. Whoever can connect may read all that is served, unless there are `users`."""
    spaces: list[Pattern] = Field(default=[".*"])
    """Regular expressions over whole names of spaces, of those that the daemon publishes."""
    key: Annotated[str, AfterValidator(_key_template)] = "{space}:{key}"
    """What keys are called: `{space}`, `{key}` (the primary key's values joined by `:`), or any field of the row by its name."""
    value: Literal["json", "msgpack"] = "json"
    """The row as in `after`; or as a MessagePack array: the tuple's bytes where they are known (docs/tap.md)."""
    session_timeout_ms: int = Field(default=600_000, ge=1_000, le=30 * 86_400_000)
    """How long a client that has given a name may stay away and go on where it was."""
    clients: list[TapClient] = Field(default=[])
    """Who gets less: the first whose `name` fits a client's name says which spaces it gets."""
    path: Path = Path("tap")
    """Where sessions are kept. Relative to the configuration's directory."""
    store_path: Path | None = None
    """Where the server keeps rows of its own, from the topics, to fill clients from; for where it can't read the daemon's store.
    Relative to the configuration's directory."""
    vbuckets: int = Field(default=1024, ge=1, le=32_768)
    """A power of two."""
    clients_max: int = Field(default=2_000, ge=1, le=60_000)
    """Connections at a time; who comes when there are so many is turned away."""
    buffer_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Of the newest changes, in memory for all clients together. Who falls behind them is dropped and may come back."""
    unacked_bytes_max: int = Field(default=4 * 1024 * 1024, ge=64 * 1024)
    """That one client may have been sent without acknowledging it."""
    stall_timeout_ms: int = Field(default=60_000, ge=100, le=3_600_000)
    """A client that takes or acknowledges nothing for so long is dropped; its session stays."""
    noop_interval_ms: int = Field(default=20_000, ge=100, le=3_600_000)
    """How often a client hears from the server that has nothing to say."""
    view_ms_max: int = Field(default=5_000, ge=100, le=600_000)
    """How long one view of the daemon's store is read. While it is, the store's file may grow: room that becomes free isn't used
    again."""
    users: dict[str, SecretStr] = Field(default={})
    """Names and passwords for SASL PLAIN; with any, who hasn't logged in gets nothing."""
    tls_certificate: Path | None = None
    """A file in PEM's form, with the chain: the server then speaks TLS alone."""
    tls_key: Path | None = None
    """The certificate's key, if it isn't in the same file."""
    http: str = "127.0.0.1:8086"
    """Where the server can be looked at: /metrics, /health and /status. Empty: nowhere."""

    @model_validator(mode="after")
    def _fits_together(self) -> TapSection:
        for name, text in (("listen", self.listen), ("http", self.http)):
            check_listen(name, text)
        if self.vbuckets & (self.vbuckets - 1):
            raise ValueError(f"vbuckets = {self.vbuckets} is no power of two")
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate")
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`, None to listen nowhere."""
        return address_of(self.listen)

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of `http`, None to listen nowhere."""
        return address_of(self.http)
