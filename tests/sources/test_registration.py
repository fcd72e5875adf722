"""A registered daemon's id: found by its UUID, and never asked for while another member knows one."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

import cdc.sources.handshake
from cdc.errors import ConnectionLostError, Remedy
from cdc.sources.connection import Connection
from cdc.sources.handshake import greet
from cdc.sources.registration import check_others, find_id
from tests.fakes.captures import VERSIONS
from tests.fakes.master import Master
from tests.fakes.servers import FakeServers

OURS = UUID(int=7)


def connected(monkeypatch: pytest.MonkeyPatch, servers: FakeServers) -> Connection:
    """To the first of the servers."""
    monkeypatch.setattr(cdc.sources.handshake, "Connection", servers)
    return greet(servers.config().source.members()[0], OURS, frame_bytes_max=1024 * 1024)


@pytest.mark.parametrize("version", VERSIONS)
def test_id_by_uuid(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    master = Master(version)
    connection = connected(monkeypatch, FakeServers(port_3301=master))
    assert find_id(connection) is None
    master.enroll(UUID(int=5))
    master.enroll(OURS)
    assert find_id(connection) == 3


def test_id_that_another_member_knows_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Master(), Master()
    servers = FakeServers(port_3301=here, port_3302=None, port_3303=there)
    connection = connected(monkeypatch, servers)
    check_others(connection, servers.config())
    there.enroll(OURS)
    with pytest.raises(
        ConnectionLostError, match=r"127\.0\.0\.1:3301 doesn't know yet .* instance 2 .*127\.0\.0\.1:3303"
    ) as caught:
        check_others(connection, servers.config())
    assert caught.value.remedy is Remedy.WAIT
    others = servers.connections[1:]
    assert others
    assert all(other.is_closed for other in others)


def test_only_member_has_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = FakeServers(port_3301=Master())
    connection = connected(monkeypatch, servers)
    check_others(connection, servers.config())
    assert cast(object, servers.connections) == [connection]


@pytest.mark.parametrize(("version", "is_told"), [("2.6", False), ("2.11", True), ("3.3", True)])
def test_what_an_id_costs_is_told(monkeypatch: pytest.MonkeyPatch, version: str, is_told: bool) -> None:
    """Before the id is asked for; members before 2.11 join whatever the instances are."""
    servers = FakeServers(port_3301=Master(version))
    connection = connected(monkeypatch, servers)
    with capture_logs() as lines:
        check_others(connection, servers.config())
    assert [line["log_level"] for line in lines] == (["warning"] if is_told else [])
    assert all("bootstrap_strategy = 'legacy'" in line["event"] for line in lines)
