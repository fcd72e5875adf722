"""Finds out whether the daemon of a configuration, which runs on this machine, answers: a frozen one holds its locks, too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.http_settings import access_of
from cdc.errors import CdcError
from cdc.ops.asking import STATUS_SECONDS, SilentError, ask
from cdc.ops.silence import Silence, fleet_process_of, silence_of
from cdc.store.files import holding_process
from cdc.stream.commits.checkpoint import Checkpoint

SIGN_SECONDS_MAX: Final = 15.0
"""Age of the last sign of life, in seconds, from which on a running daemon may be frozen: it writes two each second."""
_END: Final = "`kill -9 {process}` ends it if it is stuck; then start it again, or have its service manager do it"


def of_running(config: Config, stored: Checkpoint) -> Silence | None:
    """Return what to tell of a daemon that holds its state directory, and doesn't answer; None if it does.

    One without http.listen is judged by its last sign of life, which `stored` has, and which tells since when.
    """
    process = holding_process(admission.store_path(config))
    if process is None:
        return None
    sign = stored.signs.get(config.name)
    seconds = time.time() - sign.ts_ms / 1000 if sign is not None else 0.0
    if config.http.address is None:
        return _silence(config, process, seconds) if seconds > SIGN_SECONDS_MAX else None
    try:
        shown = ask(config.name, config.http.address, "/status", access=access_of(config))
    except SilentError as error:
        # A fleet's process knows more of it.
        return (
            Silence(error.message, error.hint)
            if _names(error, process)
            else _silence(config, process, max(seconds, STATUS_SECONDS))
        )
    except CdcError:
        return None  # it answers, or another one has the address, which is reported elsewhere
    if not shown.get("is_stuck"):
        return None
    return Silence(f"the daemon {config.name!r} runs, and stands still: {shown['error']}", _END.format(process=process))


@contextlib.contextmanager
def explained(config: Config) -> Iterator[None]:
    """Name the process in the error if the daemon doesn't answer, and holds its state directory on this machine."""
    try:
        yield
    except SilentError as error:
        process = holding_process(admission.store_path(config))
        if process is not None and not _names(error, process):
            found = _silence(config, process, STATUS_SECONDS)
            error.message, error.hint = found.sentence, found.remedy
        raise


def _names(error: SilentError, process: int) -> bool:
    return f"process {process} " in error.message


def _silence(config: Config, process: int, seconds: float) -> Silence:
    fleet = fleet_process_of(process)
    if fleet is not None:
        # It has http.listen, and answers for its daemons.
        found = silence_of(fleet, seconds, None, _END.format(process=fleet))
        return Silence(f"the fleet's process, which answers for {config.name!r}, doesn't: {found.sentence}", found.remedy)
    found = silence_of(process, seconds, None, _END.format(process=process))
    return Silence(f"the daemon {config.name!r} runs, and doesn't answer: {found.sentence}", found.remedy)
