"""`tarantool-cdc run` and `replay`: run the daemon until it is told to stop.

SIGTERM and SIGINT stop it cleanly; see cdc.ops.signals for the others.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cdc.config import Config
from cdc.daemon.admission import StartOptions
from cdc.daemon.file_source import Files
from cdc.daemon.row_path import log_start
from cdc.daemon.supervisor import Daemon
from cdc.ops import signals


def run(config: Config, *, until_caught_up: bool, rebuild_state: bool, take_over: bool, take_prefix: bool) -> None:
    """Follow the master. Raises the error that an operator must see."""
    log_start(config)
    options = StartOptions(rebuild_state=rebuild_state, take_over=take_over, take_prefix=take_prefix)
    _under_signals(Daemon(config, options)).run(until_caught_up=until_caught_up)


def replay(
    config: Config, directories: Sequence[Path], *, follows: bool, rebuild_state: bool, take_over: bool, take_prefix: bool
) -> None:
    """Publish from a server's files. Raises the error that an operator must see."""
    log_start(config)
    options = StartOptions(rebuild_state=rebuild_state, take_over=take_over, take_prefix=take_prefix)
    _under_signals(Daemon(config, options, partial(Files, directories=directories, follows=follows))).run()


def _under_signals(daemon: Daemon) -> Daemon:
    for number, act in signals.handlers(daemon.stop).items():
        signal.signal(number, lambda *_, act=act: act())
    return daemon
