"""Signals of a process that runs until it is stopped: the daemon's, and those of the feeds beside it.

| signal | effect |
|---|---|
| SIGTERM, SIGINT | an orderly stop |
| SIGHUP | an orderly stop if the process was started from a terminal, which was closed then; otherwise a line in the log |
| SIGUSR2 | the stack of each thread on stderr |
| SIGTTOU | none: a terminal that suspends programs in the background when they write (`stty tostop`) doesn't suspend this one |

SIGHUP is also what a log rotation sends, so that programs open their files again. The log goes to stderr, so there is no file to
open, and a service must not end for that.

    signal ─▶ Python's own handler writes its number into a pipe ─▶ a thread reads it, and acts

A handler of ours would interrupt the main thread anywhere, also where it holds a lock. If the handler needed that lock, it would
wait for good. `threading.Event.set` has such a lock, and a fleet's daemon gets two SIGTERMs at once if its process group is told
to end: the second one may come while the first one sets the event.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from cdc import log

Handler = Callable[[], None]

_acts: Final[dict[int, Handler]] = {}
"""What the thread does at each signal."""


def prepare() -> None:
    """Set the effects of signals that ask for no stop, as soon as the log is set up. For the main thread."""
    stderr = log.unblocked_stderr()
    # The thread has Python's lock, so the other threads' stacks stand still. `faulthandler.register` prints without it: now and
    # then it read a stack that was changing, and the process ended with SIGSEGV.
    heed({signal.SIGUSR2: lambda: faulthandler.dump_traceback(stderr, all_threads=True)})
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if not _ends_at_hangup() and not _ignores_hangup():
        heed({signal.SIGHUP: _go_on})


def heed(acts: Mapping[signal.Signals, Handler]) -> None:
    """Act at these signals from now on, in a thread of its own, also while the main thread waits for something outside of Python.

    For the main thread. `acts` must not raise.
    """
    if not _acts:
        _start_thread()
    for number, act in acts.items():
        _acts[number] = act
        # Only signals that Python handles are written to the pipe.
        signal.signal(number, lambda *_: None)


def heed_also(number: signal.Signals, act: Handler) -> None:
    """As `heed`, after what the signal does already."""
    former = _acts[number]

    def both() -> None:
        former()
        act()

    heed({number: both})


def handlers(stop: Handler) -> Mapping[signal.Signals, Handler]:
    """Return what to `heed` at each signal that may ask for a stop. `stop` asks for an orderly one."""
    found: dict[signal.Signals, Handler] = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if not _ignores_hangup():
        found[signal.SIGHUP] = _at_hangup(stop) if _ends_at_hangup() else _go_on
    return found


def _start_thread() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def act() -> None:
        while come := os.read(reader, 1):
            _acts.get(come[0], _nothing)()

    threading.Thread(target=act, name="signals to this process", daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


def _nothing() -> None:
    """A signal that Python handles itself."""


def _at_hangup(stop: Handler) -> Handler:
    def end() -> None:
        structlog.get_logger().warning("stopping at SIGHUP: the terminal that this program was started from is closed")
        stop()

    return end


def _go_on() -> None:
    structlog.get_logger().info(
        "SIGHUP has no effect: the log goes to stderr, so there is no file to open again. Let logrotate use copytruncate. "
        "SIGTERM stops this program."
    )


def _ignores_hangup() -> bool:
    """Return whether the program was started with SIGHUP ignored, as `nohup` does it."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _ends_at_hangup() -> bool:
    """Return whether the process has a controlling terminal, whose end the system reports with SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
