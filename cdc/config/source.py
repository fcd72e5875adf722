"""The section `[source]`, and the members that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.config.member_uri import parts_of_uri
from cdc.config.password_file import password_in
from cdc.config.section import Section
from cdc.config.timeouts import Timeouts
from cdc.positions.vclock import VCLOCK_MAX


def _replica_id(number: int) -> int:
    if not 0 < number < VCLOCK_MAX:
        raise ValueError(f"is not the id of a member: ids are 1 to {VCLOCK_MAX - 1}")
    return number


def _instance_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", text):
        raise ValueError("must begin with a lowercase letter, and have lowercase letters, digits, '_' and '-' only, 63 at most")
    return text


InstanceName = Annotated[str, AfterValidator(_instance_name)]
ReplicaId = Annotated[int, AfterValidator(_replica_id)]


class Member:
    """Address of one server, and the user and password to log in with."""

    __slots__ = ("host", "password", "port", "user")

    def __init__(self, host: str, port: int, user: str, password: SecretStr | None) -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password

    @property
    def address(self) -> str:
        """Host and port, without user and password."""
        return f"{self.host}:{self.port}"


def _uri(uri: SecretStr) -> SecretStr:
    parts_of_uri(uri.get_secret_value())
    return uri


Uri = Annotated[SecretStr, AfterValidator(_uri)]


class SourceSection(Section):
    """Source of the rows: the members of the replica set."""

    uris: list[Uri] = Field(min_length=1)
    """Members of one replica set, one or more: `["user:password@host:port"]`. `%XX` is a byte; the rest is literal."""
    user: str | None = None
    """User for URIs without one; by default `guest`."""
    password: SecretStr | None = None
    """Password for URIs without one; by default an empty one (`guest`: none)."""
    password_file: Path | None = None
    """File with that password. One line end at the file's end is ignored."""
    mode: Literal["anonymous", "registered"] = "anonymous"
    """`registered`: the daemon is a member of the replica set with an id. Every server version keeps the logs for it. From
    Tarantool 2.11 on it may keep members from joining: see operations.md."""
    instance_name: InstanceName | None = None
    """Name of a registered daemon in `_cluster` (3.0 and later). No other instance may have the name: it would lose it."""
    on_gap: Literal["resnapshot", "fail"] = "resnapshot"
    """Policy if the server no longer has the logs after the checkpoint, or can't read them."""
    on_divergence: Literal["fail", "resnapshot"] = "fail"
    """Policy if the server lacks changes that were published, or has other rows in their place."""
    prefer: Literal["replica", "leader", "order"] = "order"
    """Choice among several members that can be followed. `order`: the first of `uris`; `replica`: the first read-only one;
    `leader`: the first writable one."""
    replication_timeout_ms: int = Field(default=1_000, ge=50, le=3_600_000)
    """The members' `replication_timeout`, their interval of heartbeats. A member must answer a request for its ballot within this
    time; the followed one of several is asked after 1.25 times this time of silence, and left if it doesn't answer and another
    can be followed; after 10 times this time of silence the daemon closes the connection whatever else answers."""
    divergence_wait_ms: int | None = Field(default=None, ge=0, le=3_600_000)
    """If none of several members can be followed: how long the daemon waits for a member that lags, loads or is unavailable,
    before the policies apply. The default is 30 times `replication_timeout_ms`."""
    survey_interval_ms: int | None = Field(default=None, ge=0, le=3_600_000)
    """Interval at which the daemon asks every member for its ballot, for /status, /metrics, and to detect a gap that the stream
    doesn't show yet. The default is 10 times `replication_timeout_ms`. 0: only to choose among several members, or when the
    followed one of several has fallen silent."""
    exclude_origins: list[ReplicaId] = Field(default=[])
    """Ids of members whose own changes the server must not send."""
    ack_interval_ms: int = Field(default=500, ge=10, le=60_000)
    """Interval of ACKs to the master, with the durable position; less than four times its `replication_timeout`."""
    quorum_alert_ms: int = Field(default=10_000, ge=100, le=86_400_000)
    """Time after which a synchronous transaction that waits for its quorum is an error in /status. The default is twice the
    leader's default time limit (replication_synchro_timeout)."""
    bucket_alert_ms: int = Field(default=60_000, ge=100, le=86_400_000)
    """Time after which rows of a bucket that wait for the daemon of another shard are an error in /status. Only in a fleet."""
    frame_bytes_max: int = Field(default=256 * 1024 * 1024, ge=1024)
    """Maximum size of a packet from the server, in bytes."""
    transaction_bytes_max: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Bytes in memory above which an incomplete transaction is spooled to disk until its end arrives; the same applies to
    transactions that wait for their quorum."""

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

    @property
    def timeouts(self) -> Timeouts:
        """The time limits for members."""
        return Timeouts.of(self.replication_timeout_ms, self.survey_interval_ms, self.divergence_wait_ms)

    def addresses(self) -> list[tuple[str, int]]:
        """Return the servers' hosts and ports, in order."""
        return [(member.host, member.port) for member in self._without_passwords()]

    def members(self) -> list[Member]:
        """Return the servers in order. Raises ConfigurationError if the password file can't be read."""
        password = self.password if self.password_file is None else password_in(self.password_file, "source.password_file")
        return [self._member(uri.get_secret_value(), password) for uri in self.uris]

    def _without_passwords(self) -> list[Member]:
        return [self._member(uri.get_secret_value(), None) for uri in self.uris]

    def _member(self, uri: str, password: SecretStr | None) -> Member:
        """Return a member with the URI's user and password, or else those of the section."""
        host, port, named, own = parts_of_uri(uri)
        user = named or self.user or "guest"
        if own is not None:
            password = SecretStr(own)
        elif password is None and user != "guest":
            # As for Tarantool itself. Without a login, the server would take the daemon for guest.
            password = SecretStr("")
        return Member(host, port, user, password)
