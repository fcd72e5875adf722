"""Whether servers run as processes or containers, and that they end with their context."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import ConfigurationError
from cdc.local import servers as module
from cdc.local.containers import docker_engine_answers
from cdc.local.servers import KIND_VARIABLE, LocalServers, ServerKind, local_servers, server_kind


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ServerKind:
        monkeypatch.setenv(KIND_VARIABLE, kind.value)
        assert server_kind() is kind
        assert local_servers(Path("unused")).kind is kind
    monkeypatch.setenv(KIND_VARIABLE, "virtual")
    with pytest.raises(ConfigurationError, match="Use process or container"):
        server_kind()


@pytest.mark.parametrize(("answers", "kind"), [(True, ServerKind.CONTAINER), (False, ServerKind.PROCESS)])
def test_without_it_an_answering_engine_does(monkeypatch: pytest.MonkeyPatch, answers: bool, kind: ServerKind) -> None:
    monkeypatch.delenv(KIND_VARIABLE, raising=False)
    monkeypatch.setattr(module, "docker_engine_answers", lambda: answers)
    assert server_kind() is kind


def test_an_engine_that_is_not_there_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    docker_engine_answers.cache_clear()
    assert docker_engine_answers() is False
    docker_engine_answers.cache_clear()


def test_servers_end_with_their_context(servers: LocalServers, tmp_path: Path) -> None:
    with local_servers(tmp_path / "inner", servers.kind) as inner:
        started = [inner.start_tarantool("first"), inner.start_tarantool("second")]
        later = inner.tarantool("later")
        assert [server.is_running for server in [*started, later]] == [True, True, False]
        assert started[0].work_dir == tmp_path / "inner" / "first"
    assert [server.is_running for server in started] == [False, False]
