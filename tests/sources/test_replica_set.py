"""Which replica set a server belongs to: asked by a SELECT, in every version, and of a server that isn't ready too."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest

import cdc.sources.handshake
from cdc.errors import ConnectionLostError, ProtocolError, Remedy, ServerError
from cdc.protocol.constants import ErrorCode
from cdc.sources.connection import Connection
from cdc.sources.handshake import greet
from cdc.sources.replica_set import replicaset_uuid
from tests.fakes.captures import VERSIONS
from tests.fakes.master import REPLICASET, SCHEMA, Master, MasterConnection
from tests.fakes.servers import FakeServers


def connected(monkeypatch: pytest.MonkeyPatch, master: Master, **source: Any) -> Connection:
    servers = FakeServers(port_3301=master)
    monkeypatch.setattr(cdc.sources.handshake, "Connection", servers)
    return greet(servers.config(**source).source.members()[0], UUID(int=7), frame_bytes_max=1024 * 1024)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_a_row_of_schema(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    assert replicaset_uuid(connected(monkeypatch, Master(version))) == REPLICASET


def test_a_server_whose_schema_is_of_an_older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.x started with the files of 2.x, and without box.schema.upgrade."""
    master = Master("3.3")
    master.delete(SCHEMA, "replicaset_uuid")
    master.insert(SCHEMA, "cluster", str(UUID(int=5)))
    assert replicaset_uuid(connected(monkeypatch, master)) == UUID(int=5)


def test_a_server_that_does_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master("2.6")
    master.delete(SCHEMA, "cluster")
    with pytest.raises(ServerError, match="still loading") as caught:
        replicaset_uuid(connected(monkeypatch, master))
    assert (caught.value.code, caught.value.remedy) == (ErrorCode.LOADING, Remedy.WAIT)

    def no_space(self: MasterConnection, _: Any) -> None:
        self.fail(36, "Space '#272' does not exist")

    monkeypatch.setattr(MasterConnection, "_select", no_space)
    with pytest.raises(ServerError, match="still loading") as caught:
        replicaset_uuid(connected(monkeypatch, Master("2.6")))
    assert caught.value.remedy is Remedy.WAIT


def test_a_row_that_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master("2.11")
    master.replace(SCHEMA, "cluster", "shop")
    with pytest.raises(ProtocolError, match=r"127\.0\.0\.1:3301 names a replica set by something that isn't a UUID: .*'shop'"):
        replicaset_uuid(connected(monkeypatch, master))


def test_without_the_right_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the one for a snapshot, which needs the same right."""
    connection = connected(monkeypatch, Master("2.11"))
    connection._relay._user = "guest"  # type: ignore[attr-defined]
    with pytest.raises(ServerError, match=r"denied.*box\.schema\.user\.grant\('guest', 'read', 'universe'\)"):
        replicaset_uuid(connection)


def test_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connected(monkeypatch, Master("2.11"))
    with pytest.raises(ConnectionLostError, match=r"after it had sent its greeting.* look into its log"):
        replicaset_uuid(connection, deadline=time.monotonic() - 1)
