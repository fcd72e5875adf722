"""Which row path runs: the compiled one (the Rust crate in this folder), or the Python one, which is its specification.

The compiled module is optional: an installation without a Rust toolchain has none, and does the same work more slowly.
TARANTOOL_CDC_PURE=1 selects the Python path where there are both. This is decided here, once, and nowhere else.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    # For annotations: at run time they are there only if they are chosen.
    from cdc._native import CompiledMessages as CompiledMessages
    from cdc._native import CompiledRowPath as CompiledRowPath
    from cdc._native import FrameReader as FrameReader
    from cdc._native import ImageKeys as ImageKeys
    from cdc._native import Rows as Rows
    from cdc._native import Run as Run

RowPath = Literal["native", "python"]

_T = TypeVar("_T")

_WISH: Final = "TARANTOOL_CDC_PURE"


def _choose() -> tuple[RowPath, str, Any]:
    if os.environ.get(_WISH, "0") not in ("", "0"):
        return "python", f"{_WISH} is set", None
    try:
        from cdc import _native
    except ImportError as error:
        # Nothing was built, or for another platform: the reason is shown, and the daemon works.
        why = f"the compiled module isn't there ({error}): install a Rust toolchain (cargo) and install this again"
        return "python", why, None
    if getattr(_native, "SOURCES_CRC32", "") != _sources_crc32():
        return "python", "the compiled module was built of other sources than these: install this again (make setup)", None
    return "native", "the compiled module is there", _native


def _sources_crc32() -> str:
    """As cdc/native/build.rs tells it: a module that was left from before an update lacks what Python expects of it."""
    sources = sorted((Path(__file__).parent / "src").glob("*.rs"))
    return str(zlib.crc32(b"".join(source.read_bytes() for source in sources)))


_CHOICE: Final = _choose()

ROW_PATH: Final = _CHOICE[0]
"""Which one runs."""

TAKES_TURNS: Final = ROW_PATH == "python"
"""Whether the threads that work on rows had better do it in turns, because every row needs the interpreter's lock."""

REASON: Final = _CHOICE[1]
"""Why, as a clause."""


def choose(name: str, python: _T) -> _T:
    """What the compiled module has under this name, if that is the path that runs, else the Python one, which does the same."""
    chosen: _T = python if _CHOICE[2] is None else getattr(_CHOICE[2], name)
    return chosen


def plug_in(client_library: str) -> Any:
    """The compiled module, if the librdkafka that this library is linked with takes it as a plug-in; else None."""
    module = _CHOICE[2]
    return module if module is not None and module.ProducerHandle.bind(client_library, module.__file__) else None
