"""The log on stderr: lines for people on a terminal, JSON objects elsewhere.

Once the log is set up, everything goes through it, also the messages of Kafka's library and the errors that end the program. So a
collector of JSON misses none of them. Nothing waits for the log: see cdc.log.line_queue.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import sys
import threading
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final, Literal

import structlog

from cdc.errors import printable
from cdc.log.line_queue import STDERR, LineQueue
from cdc.log.output import ESCAPE

LIBRARY: Final = logging.getLogger("librdkafka")
"""Logger for the clients of Kafka."""

_JSON: Final = structlog.processors.JSONRenderer()

FLUSH_SECONDS: Final = 3.0
"""Time that the program's end waits for the log's lines to be written."""

# The queue of the log that has been set up, or None before.
_lines: LineQueue | None = None


def configure(style: Literal["auto", "console", "json", "sentence"], level: str, *, name: str | None = None) -> None:
    """Set up the program's log once. In the style `sentence`, lines look like the errors of a command.

    `name`: the daemon's, for lines of modules that don't know it: a fleet's daemons write one log together.
    """
    global _lines  # noqa: PLW0603 - stderr, too, exists once per process
    is_terminal = os.isatty(STDERR)
    is_console = style == "console" or (style == "auto" and is_terminal)
    renderer: structlog.typing.Processor = _JSON
    if is_console:
        renderer = structlog.dev.ConsoleRenderer(colors=is_terminal)
    elif style == "sentence":
        renderer = _sentence
    lines = _lines = LineQueue(_tell_loss, encoding=getattr(sys.stderr, "encoding", None) or "utf-8", errors=ESCAPE)
    structlog.configure(
        processors=[
            *([_Named(name)] if name is not None else []),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_without_control_characters] if renderer is not _JSON else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=lambda *_: _Logger(lines),
        cache_logger_on_first_use=False,
    )
    LIBRARY.handlers = [_Library()]
    LIBRARY.propagate = False
    sys.excepthook = _fault
    threading.excepthook = lambda fault: _fault(fault.exc_type, fault.exc_value, fault.exc_traceback)


def take_stderr() -> None:
    """Have the log's queue take what Python and libraries print to stderr. The log must have been set up."""
    assert _lines is not None
    sys.stderr = _Stderr(_lines)


def report_last_error(sentence: str) -> bool:
    """Write the error that ends the program, in the log's form. Return False if the log hasn't been set up."""
    if _lines is None:
        return False
    if structlog.get_config()["processors"][-1] is _JSON:
        structlog.get_logger().error(sentence)
    else:
        _lines.put(f"tarantool-cdc: {printable(sentence, but=chr(10))}\n", is_error=True)
    return True


def flush() -> None:
    """Wait until the log's lines are written, but at most FLUSH_SECONDS."""
    if _lines is not None:
        _lines.flush(FLUSH_SECONDS)


def lost_count() -> int:
    """Return the number of lines that couldn't be written."""
    return _lines.lost_count if _lines is not None else 0


def unblocked_stderr() -> int:
    """Return a file descriptor for code that writes to stderr from outside of the log. A write to it never waits for a reader.

    A pipe or a terminal is opened once more, so that its other users aren't affected. A socket (that of systemd's journal)
    can't be opened again: there the log's queue takes what is written, from a pipe. The log must have been set up.
    """
    mode = os.fstat(STDERR).st_mode
    if stat.S_ISREG(mode):
        return STDERR
    if not stat.S_ISSOCK(mode):
        try:
            return os.open(f"/proc/self/fd/{STDERR}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # no reader, no right to open it again, or no /proc
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_pass_on, args=(reader,), name="log of stacks", daemon=True).start()
    return writer


def _pass_on(reader: int) -> None:
    """Put into the log's queue the lines that arrive in a pipe."""
    assert _lines is not None
    with open(reader, encoding="utf-8", errors="backslashreplace") as pipe:
        for line in pipe:
            _lines.put(line)


def _without_control_characters(_: object, __: str, about: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Have nothing that somebody has sent move a terminal's cursor, or begin another line."""
    for name, value in about.items():
        if isinstance(value, str) and not value.isprintable() and name != "exception":
            about[name] = printable(value)
    return about


def _sentence(_: object, __: str, about: MutableMapping[str, Any]) -> str:
    """Return a line of the log as a sentence, with what it is about in brackets."""
    details = ", ".join(f"{name}: {value}" for name, value in about.items() if name not in _UNSAID)
    return f"tarantool-cdc: {about['event']}" + (f" ({details})" if details else "")


_UNSAID: Final = frozenset({"event", "name", "upstream", "level", "timestamp"})
"""Details that a command's user knows."""


class _Named:
    """Processor that adds the daemon's name to lines without one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, _: object, __: str, about: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        about.setdefault("name", self._name)
        return about


class _Logger:
    """What structlog hands its rendered lines to."""

    def __init__(self, lines: LineQueue) -> None:
        self._lines = lines

    def info(self, line: str) -> None:
        self._lines.put(line + "\n")

    def error(self, line: str) -> None:
        self._lines.put(line + "\n", is_error=True)

    debug = warning = info
    critical = error


class _Stderr(io.TextIOBase):
    """Text stream that puts what is printed into the log's queue."""

    def __init__(self, lines: LineQueue) -> None:
        self._lines = lines

    @property
    def encoding(self) -> str:  # type: ignore[override] # typeshed has a variable
        return self._lines.encoding

    def write(self, text: str) -> int:
        if text:
            self._lines.put(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(STDERR)

    def fileno(self) -> int:
        return STDERR


class _Library(logging.Handler):
    """Handler that passes on the messages of Kafka's library."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, "Kafka's client says", line=record.getMessage())


def _tell_loss(count: int, total: int) -> None:
    # An error, because that passes every log.level: the missing lines may be errors, too.
    structlog.get_logger().error(
        "log lines before this one are missing: stderr could not be written, or nobody read it", lines=count, since_start=total
    )


def _fault(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Log an unexpected error."""
    if issubclass(kind, KeyboardInterrupt | SystemExit) or error is None:
        return
    structlog.get_logger().critical("a fault of this program", exc_info=(kind, error, trace))
    if threading.current_thread() is threading.main_thread():
        flush()
