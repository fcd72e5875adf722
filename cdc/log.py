"""The daemon's log on stderr: lines for people on a terminal, JSON objects elsewhere.

Once the log is set up, everything goes through it, also the messages of Kafka's library and the errors that end the program. So a
collector of JSON misses none of them.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Final, Literal

import structlog

LIBRARY: Final = logging.getLogger("librdkafka")
"""Logger for the clients of Kafka."""


def configure(style: Literal["auto", "console", "json"], level: str) -> None:
    """Set up the program's log once."""
    is_console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if is_console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    LIBRARY.handlers = [_Library()]
    LIBRARY.propagate = False
    sys.excepthook = _fault
    threading.excepthook = lambda fault: _fault(fault.exc_type, fault.exc_value, fault.exc_traceback)


def is_json() -> bool:
    """Return whether the log has been set up, as JSON objects."""
    return structlog.is_configured() and isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


class _Library(logging.Handler):
    """Handler that passes on the messages of Kafka's library."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, "Kafka's client says", line=record.getMessage())


def _fault(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Log an unexpected error."""
    if issubclass(kind, KeyboardInterrupt | SystemExit) or error is None:
        return
    structlog.get_logger().critical("a fault of this program", exc_info=(kind, error, trace))
