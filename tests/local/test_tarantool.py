"""The Tarantool that tests start: values both ways, errors, users and restarts."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from cdc.errors import ConnectionLostError, ServerError
from cdc.local.client import Client
from cdc.local.errors import LocalServerError, PortTakenError
from cdc.local.interface import TarantoolServer
from cdc.local.options import TarantoolOptions
from cdc.local.ports import free_port
from cdc.local.servers import ServerKind, server_kind
from cdc.local.tarantool import PASSWORD, Tarantool
from tests.conftest import TarantoolFactory

only_processes = pytest.mark.skipif(
    server_kind() is not ServerKind.PROCESS, reason="needs a tarantool on this machine; containers are chosen"
)


def make_space(server: TarantoolServer) -> None:
    server.eval("box.schema.space.create('things'):create_index('pk')")


def test_values_travel_both_ways(tarantool: TarantoolServer) -> None:
    values = [None, True, -5, 2**64 - 1, 1.5, "text", [1, [2]], {"a": {"b": 1}}]
    assert tarantool.eval("return ...", *values) == values
    assert tarantool.eval("return '\\xff\\xfe', #...", "\udcff\udcfe!") == ["\udcff\udcfe", 3]
    hexadecimal = "ffffffff-0000-4000-8000-000000000001"
    number, uuid = tarantool.eval("return require('decimal').new('1.50'), require('uuid').fromstr(...)", hexadecimal)
    assert number == msgpack.ExtType(1, bytes.fromhex("02150c"))
    assert uuid == msgpack.ExtType(2, bytes.fromhex(hexadecimal.replace("-", "")))


def test_raw_answers_are_the_bytes_of_the_server(tarantool: TarantoolServer) -> None:
    assert tarantool.eval_raw("return 1, 'x'") == b"\xdd\x00\x00\x00\x02\x01\xa1x"


def test_an_error_in_lua_names_its_code_and_leaves_the_connection(tarantool: TarantoolServer) -> None:
    with pytest.raises(ServerError, match="no such thing") as error:
        tarantool.eval("box.error(box.error.PROC_LUA, 'no such thing')")
    assert error.value.code == 32
    assert error.value.kind == "ClientError"
    assert tarantool.eval("return 1") == [1]


def test_a_wrong_password_is_an_error_and_stays_one(tarantool: TarantoolServer) -> None:
    client = Client(tarantool.port, "admin", PASSWORD + "x")
    for _ in range(2):
        with pytest.raises(ServerError, match="password"):
            client.eval("return 1")


def test_the_replication_user_reads_and_writes_nothing(tarantool: TarantoolServer) -> None:
    make_space(tarantool)
    user, _, password = tarantool.uri.partition("@")[0].partition(":")
    client = Client(tarantool.port, user, password)
    with pytest.raises(ServerError, match="denied"):
        client.eval("return 1")
    grants = tarantool.eval("return box.schema.user.info(...)", user)[0]
    assert any(["read" in what.split(","), where] == [True, "universe"] for what, where, _ in grants)
    assert ["execute", "role", "replication"] in grants
    assert tarantool.uri == f"cdc:s3cret@127.0.0.1:{tarantool.port}"
    client.close()


def test_a_restart_keeps_address_identity_and_position(tarantool: TarantoolServer) -> None:
    make_space(tarantool)
    tarantool.eval("box.space.things:insert{1, 'kept'}")
    before = tarantool.uri, tarantool.uuid, tarantool.replicaset_uuid, tarantool.vclock()
    tarantool.restart()
    assert (tarantool.uri, tarantool.uuid, tarantool.replicaset_uuid, tarantool.vclock()) == before
    tarantool.kill()
    assert not tarantool.is_running
    with pytest.raises(ConnectionLostError):
        tarantool.eval("return 1")
    tarantool.start()
    assert tarantool.vclock() == before[3]
    assert tarantool.eval("return box.space.things:get(1)") == [[1, "kept"]]
    tarantool.stop()
    tarantool.stop()


def test_a_running_one_is_not_started_twice(tarantool: TarantoolServer) -> None:
    with pytest.raises(LocalServerError, match="runs already"):
        tarantool.start()
    assert tarantool.eval("return 1") == [1]


def test_a_stopped_one_has_no_pid(tarantool: TarantoolServer) -> None:
    assert tarantool.pid > 0
    tarantool.stop()
    with pytest.raises(LocalServerError, match="doesn't run"):
        tarantool.pause()


def test_a_paused_one_does_not_answer_and_goes_on(tarantool: TarantoolServer) -> None:
    client = Client(tarantool.port, "admin", PASSWORD, timeout_seconds=0.3)
    assert client.eval("return 1") == [1]
    tarantool.pause()
    assert tarantool.is_running
    with pytest.raises(ConnectionLostError, match="timed out"):
        client.eval("return 2")
    tarantool.resume()
    assert tarantool.eval("return 3") == [3]
    client.close()


def test_options_reach_the_instance(tarantool_factory: TarantoolFactory) -> None:
    instance, replicaset = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000001"
    server = tarantool_factory(
        instance_uuid=instance,
        replicaset_uuid=replicaset,
        read_only=True,
        replication_timeout=0.5,
        synchro_quorum=2,
        synchro_timeout=3.5,
        wal_max_size=1 << 20,
        box={"wal_mode": "fsync", "too_long_threshold": 7},
    )
    assert (server.uuid, server.replicaset_uuid) == (instance, replicaset)
    configured = server.eval("return box.cfg")[0]
    wanted = {
        "read_only": True,
        "replication_timeout": 0.5,
        "wal_max_size": 1 << 20,
        "wal_mode": "fsync",
        "too_long_threshold": 7,
    }
    assert wanted.items() <= configured.items()
    assert (configured["replication_synchro_quorum"], configured["replication_synchro_timeout"]) == (2, 3.5)


def test_a_replica_joins_and_follows(tarantool_factory: TarantoolFactory) -> None:
    master = tarantool_factory(name="master")
    make_space(master)
    replica = tarantool_factory(name="replica", replication=[master.uri], read_only=True)
    assert replica.replicaset_uuid == master.replicaset_uuid
    master.eval("box.space.things:insert{1}")
    arrived = "local lsn = ... while box.info.vclock[1] < lsn do require('fiber').sleep(0.001) end return box.space.things:get(1)"
    assert replica.eval(arrived, master.vclock()[1]) == [[1]]
    assert replica.vclock() == master.vclock()


@only_processes
@pytest.mark.live
def test_a_port_in_use_is_left_for_another_unless_it_was_asked_for(
    tarantool: TarantoolServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([tarantool.port])
    monkeypatch.setattr("cdc.local.tarantool.free_port", lambda: next(ports, None) or free_port())
    with Tarantool(tmp_path / "moved") as moved:
        assert moved.port != tarantool.port
        assert moved.uuid != tarantool.uuid
    asked_for = Tarantool(tmp_path / "asked-for", port=tarantool.port)
    with pytest.raises(PortTakenError, match="Address already in use"):
        asked_for.start()
    assert not asked_for.is_running


@only_processes
@pytest.mark.live
def test_one_that_cannot_start_shows_why(tmp_path: Path) -> None:
    server = Tarantool(tmp_path, TarantoolOptions(box={"wal_mode": "nonsense"}))
    with pytest.raises(LocalServerError, match="wal_mode"):
        server.start()
    assert not server.is_running
