"""What the commands print to stdout and stderr: it never ends a command with a traceback, or with a false exit status.

* A character that the stream's encoding lacks is written as in JSON (`\\u043f`), so lines of JSON stay valid.
* A closed stream (`2>&-`) is replaced at the start. Otherwise the next file to be opened would get its descriptor, and messages
  would be written into that file.
* A character that a terminal would obey is written so, too: names, and what servers say, may contain any.
* If the reader of stdout ends (`| head`), the command goes on without printing, and its exit status stays true.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Final

from cdc.errors import CdcError, printable

ESCAPE: Final = "tarantool_cdc_json"
"""Error handler of encodings: a character that the encoding lacks is written as in JSON."""

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


class OutputError(CdcError):
    """Stdout can't be written, though it has a reader."""


def prepare() -> None:
    """Replace closed standard streams, and set what is written for characters that their encodings lack."""
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is this one. Nobody may write to it: the log counts its lines as lost.
            os.open(os.devnull, os.O_WRONLY if descriptor == _STDOUT else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPE)


def say(text: str) -> bool:
    """Print a line to stdout. Return False if its reader has ended. Raises OutputError if it can't be written."""
    return _written(lambda: print(printable(text, but="\n")))


def finish() -> None:
    """Write what Python still holds back of stdout. Raises OutputError."""
    _written(sys.stdout.flush)


def _written(write: Callable[[], None]) -> bool:
    try:
        write()
    except BrokenPipeError:
        _discard(_STDOUT)
        return False
    except OSError as error:
        _discard(_STDOUT)
        raise OutputError(f"the output is incomplete, as stdout can't be written: {error.strerror}") from error
    return True


def complain(text: str) -> None:
    """Print a line to stderr, if that can be written."""
    try:
        print(printable(text, but="\n"), file=sys.stderr, flush=True)
    except OSError:
        _discard(_STDERR)


def _discard(descriptor: int) -> None:
    """Discard what is still written to the stream, also what waits in Python's buffer: its flush at exit would fail, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(ESCAPE, _escaped)
