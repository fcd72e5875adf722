"""What the jobs print: names in any script, and a stderr that can't be written, never end a job."""

from __future__ import annotations

import codecs
import io
import json
import sys
from typing import Final

_ESCAPE: Final = "tarantool_cdc_json"


def prepare() -> None:
    """Have characters that the encoding of stdout or stderr lacks written as in JSON (`\\u043f`): lines of JSON stay valid."""
    codecs.register_error(_ESCAPE, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPE)


def tell(line: str) -> None:
    """Print a line to stderr, if that can be written: its reader may have ended, or its disk be full. The job goes on without."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # The exit status and the metrics remain.
        return


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
