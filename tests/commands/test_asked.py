"""Where commands find a shard's daemon: at its own address if it runs alone, else at that of the fleet's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.commands.asked import as_it_is_asked
from cdc.config.fleet import Fleet
from cdc.daemon.http_settings import setup_of
from cdc.errors import ConfigurationError
from cdc.local.ports import free_port
from cdc.ops.asking import ask
from cdc.ops.fleet_page import fleet_server
from cdc.ops.http import StatusServer
from cdc.ops.status import Status
from cdc.ops.view import View
from tests import test_fleet_config


def fleet(folder: Path, port: int) -> Fleet:
    shards = test_fleet_config.SHARDS.replace("[fleet.shards.s2]", 'http_listen = "127.0.0.1:1"\n[fleet.shards.s2]')
    return test_fleet_config.fleet(folder, more=f'{test_fleet_config.MORE}\n[http]\nlisten = "127.0.0.1:{port}"', shards=shards)


def test_a_shard_with_an_address_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    of_shard = fleet(tmp_path, port).shard("s1")
    assert as_it_is_asked(of_shard).http.listen == "127.0.0.1:1", "it runs alone, or not at all"
    server = fleet_server(("127.0.0.1", port), "shop", "shared", dict)
    try:
        assert as_it_is_asked(of_shard).http.listen == f"127.0.0.1:{port}"
    finally:
        server.stop()
    assert setup_of(of_shard).shard == "s1"


def test_the_fleet_is_asked_and_a_shard_that_runs_alone_answers() -> None:
    server = StatusServer(("127.0.0.1", 0), View(Status("shop.s1")))
    try:
        with pytest.raises(ConfigurationError, match=r"'shop\.s1' answers, not 'shop'\. That is .* shard 's1'.*add --shard s1"):
            ask("shop", ("127.0.0.1", server.port), "/status")
        with pytest.raises(ConfigurationError, match=r"'shop\.s1' answers, not 'sho'\. Correct http\.listen"):
            ask("sho", ("127.0.0.1", server.port), "/status")
    finally:
        server.close()
