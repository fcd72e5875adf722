"""Giving the id back: at a writable member, confirmed, and not while the daemon streams from anybody."""

from __future__ import annotations

import io

import pytest

import cdc.sources.handshake
from cdc import cli
from cdc.commands.unregister import unregister
from cdc.errors import CdcError, ConfigurationError, ConnectionLostError, RequestError, ServerError
from cdc.upstream.identity import instance_uuid
from tests.fakes.captures import VERSIONS
from tests.fakes.master import Master
from tests.fakes.servers import FakeServers

OURS = instance_uuid("shop")


class Attempt:
    """One call of `unregister`: what it said and asked, and what became of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, servers: FakeServers, *, answer: bool = True) -> None:
        monkeypatch.setattr(cdc.sources.handshake, "Connection", servers)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.error: CdcError | None = None
        self.is_gone: bool | None = None

        def confirm(question: str) -> bool:
            self.asked.append(question)
            return answer

        try:
            self.is_gone = unregister(servers.config(), self.said.append, confirm)
        except CdcError as error:
            self.error = error
        assert all(connection.is_closed for connection in servers.connections)


def member(version: str = "2.11") -> Master:
    """A master that knows the daemon."""
    master = Master(version)
    master.enroll(OURS)
    return master


@pytest.mark.parametrize("version", VERSIONS)
def test_given_back(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    master = member(version)
    attempt = Attempt(monkeypatch, FakeServers(port_3301=master))
    assert (attempt.error, attempt.is_gone) == (None, True)
    assert attempt.said == [f"127.0.0.1:3301: id 2 of instance {OURS} was given back"]
    assert OURS not in master.members()
    assert len(master.members()) == 1
    (question,) = attempt.asked
    assert "id 2" in question
    again = Attempt(monkeypatch, FakeServers(port_3301=master))
    assert again.is_gone is True
    assert "nothing to give back" in again.said[0]
    assert not again.asked


def test_refused_by_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    master = member()
    attempt = Attempt(monkeypatch, FakeServers(port_3301=master), answer=False)
    assert attempt.is_gone is False
    assert attempt.said == ["nothing was done"]
    assert OURS in master.members()
    assert OURS not in master.consumers, "nothing was asked of the server either"


def test_the_writable_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, leader = member(), member()
    replica.is_read_only = True
    attempt = Attempt(monkeypatch, FakeServers(port_3301=None, port_3302=replica, port_3303=leader))
    assert attempt.is_gone is True
    assert attempt.said[0].startswith("127.0.0.1:3301: can't be asked: can't connect")
    assert attempt.said[1].startswith("127.0.0.1:3303: id 2")
    assert OURS not in leader.members()
    assert OURS in replica.members(), "it gets that by replication"


def test_no_writable_member(monkeypatch: pytest.MonkeyPatch) -> None:
    master = member()
    master.is_read_only = True
    attempt = Attempt(monkeypatch, FakeServers(port_3301=master))
    assert isinstance(attempt.error, ConfigurationError)
    assert "leader in source.uris" in str(attempt.error)
    assert not attempt.asked


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(monkeypatch, FakeServers(port_3301=None, port_3302=None))
    assert isinstance(attempt.error, ConnectionLostError)
    assert len(attempt.said) == 2


def test_no_right_to_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    master = member()
    master.may_write_cluster = False
    attempt = Attempt(monkeypatch, FakeServers(port_3301=master))
    assert isinstance(attempt.error, ServerError)
    assert "'replication'" in str(attempt.error)
    assert OURS in master.members()


def test_daemon_that_is_connected_to_any_member(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, replica = member(), member()
    replica.streaming.add(OURS)
    attempt = Attempt(monkeypatch, FakeServers(port_3301=leader, port_3302=replica))
    assert isinstance(attempt.error, RequestError)
    assert "connected to 127.0.0.1:3302" in str(attempt.error)
    assert "Stop it" in str(attempt.error)
    assert OURS in leader.members()


@pytest.mark.parametrize("version", VERSIONS)
def test_member_that_has_not_heard_of_the_daemon(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    attempt = Attempt(monkeypatch, FakeServers(port_3301=Master(version), port_3302=member(version)))
    assert attempt.is_gone is True


# The command.


class Terminal(io.StringIO):
    """Somebody sits at it."""

    def isatty(self) -> bool:
        return True


def command(monkeypatch: pytest.MonkeyPatch, master: Master, stdin: io.StringIO, *arguments: str) -> int:
    servers = FakeServers(port_3301=master)
    monkeypatch.setattr(cdc.sources.handshake, "Connection", servers)
    monkeypatch.setattr("cdc.cli.load_daemon", lambda *_: servers.config())
    monkeypatch.setattr("cdc.log.configure", lambda *_: None)
    monkeypatch.setattr("sys.stdin", stdin)
    return cli.main(["unregister", "--config", "shop.toml", *arguments])


@pytest.mark.parametrize(("text", "status"), [("y\n", 0), ("yes\n", 0), ("Y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)], ids=repr)
def test_answer_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    master = member()
    assert command(monkeypatch, master, Terminal(text)) == status
    assert (OURS in master.members()) == (status == 1)
    assert "[y/N]" in capsys.readouterr().out


def test_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    master = member()
    assert command(monkeypatch, master, io.StringIO()) == 2
    assert "--yes" in capsys.readouterr().err
    assert OURS in master.members()
    assert command(monkeypatch, master, io.StringIO(), "--yes") == 0
    assert OURS not in master.members()
