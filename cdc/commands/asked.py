"""Where a command finds the daemon that it is about: at its own address if it runs alone, else at that of the fleet's process."""

from __future__ import annotations

from cdc.config import Config
from cdc.config.fleet import of_fleet_process
from cdc.daemon.http_settings import access_of
from cdc.ops.asking import name_at


def as_it_is_asked(config: Config) -> Config:
    """Return the configuration with the address where commands find its daemon: a fleet's process answers for all of its own."""
    shard = config.kafka.shard
    if shard is None or shard.fleet_listen == config.http.listen:
        return config
    whole = of_fleet_process(config)
    address = whole.http.address
    return whole if address is not None and name_at(address, access_of(config)) == shard.fleet else config
