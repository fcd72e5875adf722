"""The server against clients that are slow, silent, many, or lie; and what it remembers of those that go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import struct
import subprocess
import tracemalloc
import urllib.request
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.commands.status import readable_tap
from cdc.feeds.tap import wire
from cdc.feeds.tap.page import CLIENT, SERVER, SERVER_COUNTERS, Page
from cdc.feeds.tap.wire import Opcode, Status
from cdc.local.ports import free_port
from tests.feeds.tap.client import FUTURE, TapClient
from tests.feeds.tap.served import Served
from tests.live.waiting import wait_for

ROWS = {f"users:{number}": b"row %d" % number for number in range(1_000)}


def test_filled_then_followed(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        client.wait_filled()
        assert client.contents == ROWS
        served.tell(("1", b"new"), ("2", None), ("1", b"newer"))
        wait_for("the changes", lambda: client.contents.get("users:1") == b"newer")
        assert client.contents == {key: value for key, value in ROWS.items() if key != "users:2"} | {"users:1": b"newer"}
        assert not client.older_over_newer


def test_a_dump_ends_with_the_connection(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served:
        for has_acks in (False, True):
            with served.connect() as client:
                client.connect("dump", is_dump=True, has_acks=has_acks).start()
                client.wait_closed()
                assert client.contents == ROWS
                assert client.backfills_ended == 1


def test_what_has_changed_since_a_date(tmp_path: Path) -> None:
    """And everything, if nobody knows what that is."""

    async def since(date: int) -> int | None:
        return {1_000: 1}.get(date)

    with Served(tmp_path, ROWS) as served:
        served.feed.since = since  # type: ignore[method-assign]  # there are no topics
        served.tell(("1", b"x"), ("2", b"y"), ("3", None))
        wait_for("the changes", lambda: served.feed.last == 3)
        with served.connect() as client:
            client.connect("a", since=1_000).start()
            client.wait_filled()
            assert client.keys_told == {"users:2", "users:3"}
            served.tell(("4", b"z"))
            wait_for("the next", lambda: client.contents == {"users:2": b"y", "users:4": b"z"})
        with served.connect() as client:
            client.connect("b", since=999).start()
            client.wait_filled()
            assert client.contents == ROWS


def test_who_leaves_while_kafka_is_away_keeps_no_place(tmp_path: Path) -> None:
    async def since(_: int) -> int | None:
        await asyncio.Event().wait()
        return None

    with Served(tmp_path, ROWS, clients_max=20) as served:
        served.feed.since = since  # type: ignore[method-assign, assignment]  # there are no topics
        for number in range(10):
            with served.connect() as client:
                client.connect(str(number), since=1_000)
        with served.connect() as stays:
            stays.connect("stays", since=1_000)
            wait_for("the others' end", lambda: served.server.connection_count == 1)
        wait_for("its own", lambda: served.server.connection_count == 0)


def test_what_was_not_acknowledged_comes_again(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        first = served.connect().connect("a", since=FUTURE)
        first.is_acknowledging = False
        first.start()
        wait_for("the client", lambda: served.server.clients)
        served.tell(("1", b"x"), ("2", b"y"))
        wait_for("both", lambda: len(first.keys_told) == 2)
        first.close()
        with served.connect() as second:
            second.connect("a", since=FUTURE).start()
            wait_for("both again", lambda: len(second.keys_told) == 2)
            wait_for("the ACK", lambda: served.server.clients["a"].session.position.seq == 2)
        with served.connect() as third:
            third.connect("a", since=FUTURE).start()
            wait_for("the client", lambda: "a" in served.server.clients)
            served.tell(("3", b"z"))
            wait_for("the next", lambda: third.keys_told)
            assert third.keys_told == {"users:3"}


def test_a_session_outlives_the_server(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        client.wait_filled()
        wait_for("the ACKs", lambda: served.server.clients["a"].session.position.cursor is None)
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        wait_for("the client", lambda: "a" in served.server.clients)
        served.tell(("1", b"x"))
        wait_for("the change", lambda: client.keys_told)
        assert client.keys_told == {"users:1"}, "it isn't filled a second time"


def test_what_goes_between_two_connections_is_told_though_nothing_was_acknowledged(tmp_path: Path) -> None:
    rows = dict(ROWS)
    with Served(tmp_path, rows) as served:
        first = served.connect().connect("a")
        first.is_acknowledging = False
        first.start()
        wait_for("some rows", lambda: "users:1" in first.contents)
        first.close()
        del rows["users:1"]
        served.tell(("1", None))
        with served.connect() as second:
            second.connect("a").start(first)
            wait_for("the rows that there are", lambda: second.contents == rows)


def test_what_goes_while_the_server_is_dead_is_told_to_who_had_just_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.feeds.tap.server._SAVE_SECONDS", 3600.0)
    rows = dict(ROWS)
    with Served(tmp_path / "first", rows) as served, served.connect() as first:
        first.connect("a").start()
        first.wait_filled()
        # What a kill would leave now.
        shutil.copytree(tmp_path / "first", tmp_path / "second")
    del rows["users:1"]
    with Served(tmp_path / "second", rows) as served, served.connect() as second:
        served.tell(("1", None))
        second.connect("a").start(first)
        wait_for("the rows that there are", lambda: second.contents == rows)


def test_a_dump_has_no_key_that_went_meanwhile(tmp_path: Path) -> None:
    """Nobody can name the keys of a space that has got another name."""
    renamed = {key.replace("users:", "users:9"): value for key, value in ROWS.items()}
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("dump", is_dump=True)
        wait_for("a row", lambda: client.receive() and client.contents)
        served.rename(7, renamed)
        wait_for("the renaming", lambda: served.feed.removals.renamed_version == 7)
        client.start()
        client.wait_closed()
        assert client.contents == renamed


def test_a_session_ends_with_its_time(tmp_path: Path) -> None:
    rows = dict(ROWS)
    with Served(tmp_path, rows, session_timeout_ms=1_000) as served:
        with served.connect() as client:
            client.connect("a").start()
            client.wait_filled()
        wait_for("the session's end", lambda: served.server.session_count == 0)
        del rows["users:1"]
        with served.connect() as client:
            client.connect("a").start()
            client.wait_filled()
            assert client.contents == rows
            assert client.flush_count == 1, "nobody has told it what went meanwhile"


@pytest.mark.parametrize("is_other", [False, True], ids=["the same", "another list"])
def test_who_wants_something_else_begins_with_nothing(tmp_path: Path, is_other: bool) -> None:
    """Under its name it may have keys of the former list, or such as have gone since."""
    with Served(tmp_path, ROWS) as served:
        with served.connect() as first:
            first.connect("a", vbuckets=[174]).start()
            first.wait_filled()
            wait_for("the ACKs", lambda: served.server.clients["a"].session.position.cursor is None)
        with served.connect() as second:
            # Vbuckets that there aren't are passed over.
            second.connect("a", vbuckets=[423 if is_other else 174, 30_000]).start(first)
            wait_for("the client", lambda: second.backfills_ended if is_other else "a" in served.server.clients)
            served.tell(("1", b"x"), ("2", b"x"))
            wait_for("the change", lambda: b"x" in second.contents.values())
            assert second.flush_count == is_other
            assert {told.vbucket for told in second.told if told.key} == {423 if is_other else 174}


def test_clients_that_never_come_back_are_forgotten(tmp_path: Path) -> None:
    with Served(tmp_path, clients_max=4) as served, served.connect() as stays:
        stays.connect("stays").start()
        stays.wait_filled()
        for number in range(30):
            with served.connect() as client:
                client.connect(f"one of many {number}").start()
                client.wait_filled()
        assert len(served.server._sessions) <= 8
        assert {"stays", "one of many 29"} <= served.server._sessions.keys()


def test_who_never_reads_and_lies_costs_a_connection_all_the_same(tmp_path: Path) -> None:
    """What is on its way to it isn't taken: it counts until it is dropped."""
    rows = {f"users:{number}": bytes(100_000) for number in range(200)}
    with Served(tmp_path, rows, clients_max=3, stall_timeout_ms=2_000) as served:
        liars = [served.connect() for _ in range(3)]
        for number, liar in enumerate(liars):
            liar.connect(f"liar {number}", has_acks=False)
        wait_for("all of them", lambda: len(served.server.clients) == 3)
        wait_for("what they don't read", lambda: all(one.stream.sent_bytes > 10**6 for one in served.server.clients.values()))
        for liar in liars:
            liar.socket.sendall(wire.request(Opcode.GET, b"key"))
        wait_for("the lies to be found out", lambda: not served.server.clients)
        assert served.server.connection_count == 3
        with served.connect() as another:
            assert another.socket.recv(1) == b"", "there are as many as may be"
        wait_for("the end of their connections", lambda: served.server.connection_count == 0)
        for liar in liars:
            liar.close()


def test_many_connections_want_one_name_at_a_time(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served:
        clients = [served.connect() for _ in range(20)]
        for client in clients:
            client.connect("a")
        for client in clients:
            client.start()
        wait_for("all but one to be closed", lambda: sum(client.is_closed for client in clients) == 19)
        (only,) = [client for client in clients if not client.is_closed]
        wait_for("the connections' end", lambda: served.server.connection_count == 1)
        served.tell(("1", b"x"))
        wait_for("the change", lambda: only.contents.get("users:1") == b"x")
        only.close()


def test_a_name_belongs_to_the_newest_connection(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as former, served.connect() as client:
        former.connect("a").start()
        former.wait_filled()
        client.connect("a").start()
        former.wait_closed()
        served.tell(("1", b"x"))
        wait_for("the change", lambda: client.contents.get("users:1") == b"x")


def test_who_takes_nothing_is_dropped_and_costs_nothing(tmp_path: Path) -> None:
    with Served(tmp_path, stall_timeout_ms=1_000, buffer_bytes_max=1024 * 1024) as served:
        stalled, mute = served.connect(), served.connect()
        stalled.connect("stalled", since=FUTURE, has_acks=False)
        mute.is_acknowledging = False
        mute.connect("mute", since=FUTURE).start()
        with served.connect() as good:
            good.connect("good", since=FUTURE).start()
            wait_for("all of them", lambda: len(served.server.clients) == 3)
            for number in range(100):
                served.tell(*[(f"{number}-{place}", bytes(5_000)) for place in range(20)])
                wait_for("the good one", lambda: f"users:{number}-19" in good.contents)  # noqa: B023 - at once
            wait_for("the others to be dropped", lambda: served.server.clients.keys() == {"good"})
            assert served.server.dropped_count == 2
            assert served.feed.ring.byte_count <= 1024 * 1024
        assert "stalled" in served.server._sessions
        stalled.close()
        mute.close()


def test_many_who_take_nothing_share_what_one_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for all of them together is bounded."""
    monkeypatch.setattr("cdc.feeds.tap.feed._SHARED_BYTES", 1 << 20)
    rows = {f"users:{number}": b"x" * 10_000 for number in range(1_000)}
    with Served(tmp_path, rows) as served, contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(TapClient(served.server.port, room_bytes=4_096)).connect(has_acks=False)
        wait_for("all of them", lambda: len(served.server.clients) == 30, 20)

        def waiting() -> list[int]:
            return [client.transport.get_write_buffer_size() for client in served.server.clients.values()]

        wait_for("all of them to stand still", lambda: all(waiting()), 20)
        assert sum(waiting()) < 4 << 20


def test_vbuckets_that_are_taken_over(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as rival, served.connect() as owner:
        rival.connect("rival").start()
        rival.wait_filled()
        owner.connect("owner", vbuckets=[174, 423], is_takeover=True).start()
        wait_for("the takeover", lambda: served.server._sessions["rival"].lost == {174, 423})
        states = [(told.vbucket, told.value[-1]) for told in owner.told if told.opcode == Opcode.TAP_VBUCKET_SET]
        assert states == [(174, 3), (423, 3), (174, 1), (423, 1)]
        count = len(rival.told)
        served.tell(*[(str(number), b"new") for number in range(2_000)])
        wait_for("the last", lambda: rival.told[-1].cas > 1_990)
        assert not {told.vbucket for told in rival.told[count:]} & {174, 423}
        wait_for("the owner's", lambda: {told.vbucket for told in owner.told if told.value == b"new"} == {174, 423})
        with served.connect() as another:
            another.connect("another").start()
            another.wait_filled()
            assert {174, 423} <= {told.vbucket for told in another.told if told.key}, "it wasn't there then"


def _states(client: TapClient) -> list[tuple[int, int]]:
    return [(told.vbucket, told.value[-1]) for told in client.told if told.opcode == Opcode.TAP_VBUCKET_SET]


def _get_new_values(served: Served, clients: list[TapClient]) -> list[int]:
    """How many changes of the vbucket 174 each client gets."""
    served.tell(*[(str(number), b"new") for number in range(2_000)])
    wait_for(
        "the changes", lambda: all(client.stream.seq == served.feed.last == 2_000 for client in served.server.clients.values())
    )
    wait_for("the ACKs", lambda: not any(client.stream.window.unacked_messages for client in served.server.clients.values()))  # type: ignore[union-attr]
    return [sum(told.value == b"new" and told.vbucket == 174 for told in client.told) for client in clients]


def test_vbuckets_that_two_clients_take_over_at_once_belong_to_one(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as one, served.connect() as two:
        for name, client in (("one", one), ("two", two)):
            client.connect(name, vbuckets=[174], is_takeover=True)
        for client in (one, two):
            client.start()
        wait_for("one of them", lambda: (174, 1) in {*_states(one), *_states(two)})
        sessions = served.server._sessions
        wait_for("its vbucket", lambda: sorted(bool(session.owned) for session in sessions.values()) == [False, True])
        # The other has come too late, or it is told that it hasn't got what it was promised.
        loser = one if sessions["two"].owned else two
        wait_for("the other", lambda: not _states(loser) or _states(loser)[-1] == (174, 4))
        assert not any(session.owned & session.lost for session in sessions.values())
        counts = _get_new_values(served, [one, two])
        assert sorted(bool(count) for count in counts) == [False, True]


def test_a_client_that_comes_back_takes_no_vbuckets_from_who_has_taken_them(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as second:
        with served.connect() as first:
            first.connect("first", vbuckets=[174], is_takeover=True).start()
            wait_for("the takeover", lambda: (174, 1) in _states(first))
            wait_for("the session", lambda: served.server._sessions["first"].owned == {174})
            second.connect("second", vbuckets=[174], is_takeover=True).start()
            wait_for("the other takeover", lambda: served.server._sessions["first"].lost == {174})
        with served.connect() as again:
            again.connect("first", vbuckets=[174], is_takeover=True).start()
            wait_for("the client", lambda: "first" in served.server.clients)
            counts = _get_new_values(served, [again, second])
            assert counts[0] == 0 < counts[1]
            assert not _states(again)


def test_a_memcached_that_is_kept_filled_again_gets_vbuckets_that_were_taken_over_meanwhile(tmp_path: Path) -> None:
    port = free_port()
    with Served(tmp_path, ROWS, sink=port) as served:
        wait_for("the sink", lambda: served.server.sink is not None)
    with Served(tmp_path, ROWS) as served, served.connect() as owner:
        owner.connect("owner", vbuckets=[174], is_takeover=True).start()
        wait_for("the takeover", lambda: any(session.lost for session in served.server._sessions.values()))
    with Served(tmp_path, ROWS, sink=port) as served:
        wait_for("the sink", lambda: served.server.sink is not None)
        assert served.server._sink_session is not None
        assert not served.server._sink_session.lost


def test_who_wants_only_new_changes_and_comes_back_too_late_is_told(tmp_path: Path) -> None:
    """Nobody knows what the client has missed."""
    with Served(tmp_path, ROWS, session_timeout_ms=1_000) as served:
        with served.connect() as client:
            client.connect("a", since=FUTURE, is_keys_only=True).start()
            wait_for("the client", lambda: "a" in served.server.clients)
        wait_for("the session's end", lambda: served.server.session_count == 0)
        served.tell(("1", b"missed"))
        with served.connect() as client:
            client.connect("a", since=FUTURE, is_keys_only=True).start()
            wait_for("the FLUSH", lambda: client.flush_count == 1)
        with served.connect() as client:
            client.connect("another", since=FUTURE, is_keys_only=True).start()
            wait_for("the client", lambda: "another" in served.server.clients)
            served.tell(("2", b"new"))
            wait_for("the change", lambda: client.keys_told == {"users:2"})
            assert not client.flush_count


def test_a_dump_leaves_the_session_of_its_name(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served:
        with served.connect() as client:
            client.connect("a").start()
            client.wait_filled()
            wait_for("the ACKs", lambda: served.server.clients["a"].session.position.cursor is None)
        with served.connect() as dump:
            dump.connect("a", is_dump=True).start()
            dump.wait_closed()
            assert dump.contents == ROWS
        served.tell(("1", None))
        with served.connect() as again:
            again.connect("a").start(client)
            wait_for("the deletion", lambda: "users:1" not in again.contents)
            assert not again.backfills_ended


def test_an_emptied_space_costs_little_for_each_of_many_who_take_nothing(tmp_path: Path) -> None:
    with Served(tmp_path) as served, contextlib.ExitStack() as clients:
        served.feed.known = frozenset({"users", "orders"})
        served.feed.former = [(b"users:%d" % number, number & 1023) for number in range(200_000)]
        for number in range(10):
            client = clients.enter_context(TapClient(served.server.port, room_bytes=4096))
            client.connect(str(number), has_acks=False)
        wait_for("the clients", lambda: len(served.server.clients) == 10)
        wait_for("their backfill's end", lambda: not any(one.stream.is_filling for one in served.server.clients.values()))
        tracemalloc.start()
        served.truncate()
        wait_for("them to be told", lambda: all(one.stream.sent_messages > 100 for one in served.server.clients.values()))
        with served.connect() as other:
            other.connect("other").start()
            other.wait_filled()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size < 20e6, "all frames of all clients are more than 150 MB"


def test_a_space_that_is_emptied(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        client.wait_filled()
        served.truncate()
        wait_for("the FLUSH", lambda: client.flush_count == 1)
        assert not client.contents, "it is the client's only space"
        served.tell(("1", b"x"), ("2", b"y"))
        served.tell(("1", b"z"), space="other")
        served.feed.known = frozenset({"users", "other"})
        served.feed.former = [(b"users:1", 174), (b"users:2", 423)]
        served.truncate()
        wait_for("the deletions", lambda: client.contents == {"other:1": b"z"})
        assert client.flush_count == 1
        # Where nobody knows what it had, the client is filled again.
        served.feed.former = None
        served.truncate()
        wait_for("the rows", lambda: client.contents == ROWS)
        assert client.flush_count == 2


def test_a_client_that_waits_is_filled_again_when_a_space_is_renamed(tmp_path: Path) -> None:
    renamed = {key.replace("users:", "users:9"): value for key, value in ROWS.items()}
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        client.wait_filled()
        served.rename(7, renamed)
        wait_for("the other names", lambda: client.contents == renamed)
        assert client.flush_count == 1
        client.close()
        with served.connect() as again:
            again.connect("a").start()
            wait_for("the client", lambda: "a" in served.server.clients)
            served.tell(("1", b"x"))
            wait_for("the change", lambda: again.keys_told)
            assert again.flush_count == 0


@pytest.mark.parametrize(
    ("data", "opcode", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n................", None, "0x47"),
        (struct.pack(">BBHBBHIIQ", 0x80, 0x40, 0, 4, 0, 0, 2**31, 0, 0), None, "2147483648 bytes"),
        (
            wire.request(Opcode.TAP_CONNECT, b"a", (4).to_bytes(4, "big"), b"\xff\xff"),
            Opcode.TAP_CONNECT,
            "65535 vbuckets in 2 bytes",
        ),
        (wire.response(Opcode.TAP_MUTATION, Status.OK, 1), None, "sent a response packet before its TAP_CONNECT"),
        (wire.request(Opcode.TAP_CONNECT, b"a", bytes(4)) + wire.request(Opcode.GET, b"k"), None, "sends commands (0x00)"),
        (wire.request(Opcode.TAP_CONNECT, b"a", bytes(4)) + b"\x81\x41" + b"\xff" * 22, None, "4294967295 bytes"),
        (
            wire.request(Opcode.TAP_CONNECT, b"a", bytes(4)) + wire.response(Opcode.TAP_MUTATION, Status.OUT_OF_MEMORY, 1),
            None,
            "refuses a message, with status 0x82",
        ),
    ],
)
def test_who_lies_is_let_go_of_and_nobody_else(tmp_path: Path, data: bytes, opcode: Opcode | None, reason: str) -> None:
    with capture_logs() as said, Served(tmp_path, ROWS) as served, served.connect() as good, served.connect() as liar:
        good.connect("good").start()
        address = str(liar.socket.getsockname())
        liar.socket.sendall(data)
        received = b""
        while part := liar.socket.recv(65536):
            received += part
        if opcode is not None:
            assert received[:2] == bytes([wire.RESPONSE, opcode])
        good.wait_filled()
        served.tell(("1", b"x"))
        wait_for("the change", lambda: good.contents.get("users:1") == b"x")
        closed = [line for line in said if line["event"] == "a connection was closed"]
        assert [line["client"] for line in closed] == [address]
        assert reason in closed[0]["why"]


def test_an_ack_that_nobody_asked_for_changes_nothing(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        for opaque in range(100):
            client.socket.sendall(wire.response(Opcode.TAP_MUTATION, Status.OK, opaque))
        client.wait_filled()
        served.tell(("1", b"x"))
        wait_for("the change", lambda: client.contents.get("users:1") == b"x")


def test_other_commands_are_answered(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.connect() as client:
        for opcode, expected in (
            (Opcode.NOOP, Status.OK),
            (Opcode.VERSION, Status.OK),
            (Opcode.GET, Status.UNKNOWN),
            (Opcode.STAT, Status.OK),
            (Opcode.SASL_LIST, Status.OK),
            (Opcode.QUIT, Status.OK),
        ):
            client.socket.sendall(wire.request(opcode))
            assert client.answer()[0] == expected
        assert client.socket.recv(1) == b""


def test_who_must_log_in(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS, users={"cache": "secret"}) as served:
        for user, password in (("cache", "wrong"), ("other", "secret"), ("cache", ""), ("", "")):
            with served.connect() as client:
                assert client.log_in(user, password) == Status.AUTH_ERROR
        for mechanism, value in (
            (b"PLAIN", b"other\0cache\0secret"),  # nobody acts as somebody else
            (b"PLAIN", b"cache\0secret"),
            (b"CRAM-MD5", b"\0cache\0secret"),
        ):
            with served.connect() as client:
                client.socket.sendall(wire.request(Opcode.SASL_AUTH, mechanism, value=value))
                assert client.answer()[0] == Status.AUTH_ERROR
                assert client.socket.recv(1) == b""
        with served.connect() as client:
            client.connect("a")
            assert client.answer()[0] == Status.AUTH_ERROR
        with served.connect() as client:
            assert client.log_in("cache", "secret") == Status.OK
            client.connect("a").start()
            client.wait_filled()
            assert client.contents == ROWS


def _made_certificate(directory: Path) -> Path:
    """Its key is in `key` beside it."""
    pair = directory / "pair.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(directory / "key"), "-out", str(pair)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    return pair


def test_tls(tmp_path: Path) -> None:
    pair = _made_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(pair))
    with Served(tmp_path, ROWS, tls_certificate=pair, tls_key=tmp_path / "key") as served:
        with TapClient(served.server.port, tls=context) as client:
            client.connect("a").start()
            client.wait_filled()
            assert client.contents == ROWS
        with served.connect() as plain:
            plain.connect("b")
            with pytest.raises((AssertionError, OSError)):
                plain.answer()


def test_clients_that_leave_over_tls_are_no_fault(tmp_path: Path) -> None:
    pair = _made_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(pair))
    with capture_logs() as log, Served(tmp_path, ROWS, tls_certificate=pair, tls_key=tmp_path / "key") as served:
        for number in range(100):
            client = TapClient(served.server.port, tls=context).connect(str(number % 7), has_acks=bool(number % 2))
            os.close(client.socket.detach())
        wait_for("their end", lambda: served.server.connection_count == 0)
    assert not [entry for entry in log if entry["log_level"] == "error"]


def test_a_connection_counts_before_its_handshake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.feeds.tap.server._HANDSHAKE_SECONDS", 1.0)
    pair = _made_certificate(tmp_path)
    with (
        capture_logs() as log,
        Served(tmp_path, ROWS, tls_certificate=pair, tls_key=tmp_path / "key", clients_max=2) as served,
        contextlib.ExitStack() as silent,
    ):
        for _ in range(10):
            silent.enter_context(served.connect())
        wait_for("them to be refused", lambda: served.server.refused_count == 8)
        assert served.server.connection_count == 2
        wait_for("the silent ones' end", lambda: served.server.connection_count == 0)
        with served.connect() as plain:
            plain.connect("plain")
            wait_for("the connection's end", lambda: any("WRONG_VERSION" in str(entry.get("why")) for entry in log))
        with TapClient(served.server.port, tls=ssl.create_default_context(cafile=str(pair))) as client:
            client.connect("a").start()
            client.wait_filled()


def test_there_can_be_too_many(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS, clients_max=3) as served:
        clients = [served.connect().connect(str(number)).start() for number in range(3)]
        for client in clients:
            client.wait_filled()
        with served.connect() as fourth:
            assert fourth.socket.recv(1) == b""
        clients.pop().close()
        wait_for("a place", lambda: served.server.connection_count == 2)
        with served.connect() as fourth:
            fourth.connect("4").start()
            fourth.wait_filled()
        for client in clients:
            client.close()


@pytest.mark.parametrize("said", [b"", wire.request(Opcode.TAP_CONNECT, b"a", bytes(4))[:20], wire.request(Opcode.NOOP)])
def test_who_asks_for_no_feed_keeps_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr("cdc.feeds.tap.server._HANDSHAKE_SECONDS", 0.2)
    with capture_logs() as log, Served(tmp_path, clients_max=1) as served, served.connect() as silent:
        silent.socket.sendall(said)
        while silent.socket.recv(65_536):
            pass
        wait_for("the connection's end", lambda: served.server.connection_count == 0)
        assert ["no feed within 0.2 s" in line["why"] for line in log if line["event"] == "a connection was closed"] == [True]
        with served.connect() as another:
            another.connect("another").start()
            another.wait_filled()


def test_a_silent_client_hears_that_the_server_is_there(tmp_path: Path) -> None:
    with Served(tmp_path, noop_interval_ms=100) as served, served.connect() as client:
        client.connect("a", since=FUTURE).start()
        wait_for("a NOOP", lambda: [told for told in client.told if told.opcode == Opcode.NOOP])


def test_what_a_client_takes_is_counted(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        client.connect("a").start()
        client.wait_filled()
        stream = served.server.clients["a"].stream
        wait_for("all that was sent", lambda: stream._taken() >= stream.sent_bytes > 0)


def test_what_is_shown(tmp_path: Path) -> None:
    with Served(tmp_path, ROWS) as served, served.connect() as client:
        page = Page(("127.0.0.1", 0), served.server, "shop")
        try:
            client.connect("a").start()
            client.wait_filled()
            served.tell(("1", b"x"))
            wait_for("the ACK", lambda: served.server.clients["a"].session.position.seq == 1)
            found = json.loads(_get(page.port, "/status"))
            (shown,) = found["clients"]
            assert (shown["name"], shown["state"], shown["seq"], shown["lag"], shown["unacked"]) == ("a", "following", 1, 0, 0)
            assert shown["sent_bytes"] > sum(map(len, ROWS.values()))
            assert any("a (" in line and "at seq 1, 0 behind" in line for line in readable_tap(found))
            metrics = _get(page.port, "/metrics")
            assert 'tarantool_cdc_tap_client_seq{client="a"} 1.0' in metrics
            documented = (Path(__file__).parents[3] / "docs" / "tap.md").read_text()
            for name in (*SERVER, *SERVER_COUNTERS, *CLIENT):
                assert name in metrics
                assert f"`{name}`" in documented or f"`{name}_total`" in documented
        finally:
            page.close()


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text
