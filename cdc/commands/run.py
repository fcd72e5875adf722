"""`tarantool-cdc run` and `replay`: run the daemon until it is told to stop.

SIGTERM and SIGINT stop it cleanly; see cdc.ops.signals for the others.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cdc.config import Config
from cdc.config.fleet import Fleet
from cdc.daemon.admission import StartOptions
from cdc.daemon.file_source import Files
from cdc.daemon.fleet import FleetDaemon, command
from cdc.daemon.row_path import log_start
from cdc.daemon.supervised import Supervision
from cdc.daemon.supervisor import Daemon
from cdc.errors import CdcError
from cdc.ops import signals
from cdc.ops.service_manager import ServiceManager


def run(config: Config, *, until_caught_up: bool, supervised: int | None = None, **orders: bool) -> None:
    """Follow the master. Raises the error that an operator must see.

    `supervised` is the descriptor of cdc.daemon.supervised, if a fleet's process has started this one; `orders` are StartOptions.
    """
    log_start(config)
    if supervised is None:
        daemon = _under_signals(Daemon(config, StartOptions(**orders)))
        service, status = ServiceManager(), daemon.status
        service.tell_started()
        service.tell_regularly(lambda: status.lifelessness, lambda: status.shown_error or status.shown_state)
        daemon.run(until_caught_up=until_caught_up)
        return
    supervision = Supervision(supervised)
    try:
        daemon = _under_signals(Daemon(_at_any_port(config), StartOptions(**orders)))
        supervision.listening(daemon.http_port)
        supervision.stop_with_fleet(daemon.stop)
        status = daemon.status
        supervision.tell_regularly(lambda: status.lifelessness, status.shards_waited_for)
        daemon.run(until_caught_up=until_caught_up)
    except CdcError as error:
        supervision.failed(error)
        raise


def _at_any_port(config: Config) -> Config:
    """Return the configuration with another address for the status: the fleet's process has http.listen, and TLS there."""
    http = config.http.model_copy(update={"listen": "127.0.0.1:0", "tls_certificate": None, "tls_key": None})
    return config.model_copy(update={"http": http})


def run_fleet(fleet: Fleet, file: Path, *, until_caught_up: bool, standby: bool, **orders: bool) -> None:
    """Run the daemons of all shards. Raises the error that an operator must see."""
    options = [f"--{name.replace('_', '-')}" for name, is_given in orders.items() if is_given]
    daemon = FleetDaemon(fleet, command(str(file), until_caught_up=until_caught_up, standby=standby), options)
    signals.heed(signals.handlers(daemon.stop))
    signals.heed_also(signal.SIGUSR2, lambda: daemon.pass_on(signal.SIGUSR2))
    daemon.run(until_caught_up=until_caught_up)


def replay(
    config: Config, directories: Sequence[Path], *, follows: bool, rebuild_state: bool, take_over: bool, take_prefix: bool
) -> None:
    """Publish from a server's files. Raises the error that an operator must see."""
    log_start(config)
    options = StartOptions(rebuild_state=rebuild_state, take_over=take_over, take_prefix=take_prefix)
    _under_signals(Daemon(config, options, partial(Files, directories=directories, follows=follows))).run()


def _under_signals(daemon: Daemon) -> Daemon:
    signals.heed(signals.handlers(daemon.stop))
    return daemon
