"""Choice of the row path: the compiled one (the Rust crate in this folder), or the Python one, which is its specification.

The compiled module is optional: an installation without a Rust toolchain has none, and does the same work more slowly.
TARANTOOL_CDC_PURE=1 selects the Python path if both exist. Only this module makes the choice, once, on import.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    # For annotations: at run time the classes exist only if the compiled module is chosen.
    from cdc._native import Arrivals as Arrivals
    from cdc._native import ColumnTreatments as ColumnTreatments
    from cdc._native import CompiledMessages as CompiledMessages
    from cdc._native import CompiledRowPath as CompiledRowPath
    from cdc._native import FrameReader as FrameReader
    from cdc._native import ImageRules as ImageRules
    from cdc._native import KeyPart as KeyPart
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
        # The module wasn't built, or was built for another platform: the daemon logs the reason and runs on the Python path.
        why = f"the compiled module isn't there ({error}): install a Rust toolchain (cargo) and install this again"
        return "python", why, None
    if getattr(_native, "SOURCES_CRC32", "") != _sources_crc32():
        return "python", "the compiled module was built from other sources: install this again (make setup)", None
    return "native", "the compiled module is there", _native


def _sources_crc32() -> str:
    """Return the sources' checksum, computed as in cdc/native/build.rs.

    It detects a module that is older than an update, and lacks functions that Python needs.
    """
    sources = sorted((Path(__file__).parent / "src").glob("*.rs"))
    return str(zlib.crc32(b"".join(source.read_bytes() for source in sources)))


_CHOICE: Final = _choose()

ROW_PATH: Final = _CHOICE[0]
"""The row path in use."""

TAKES_TURNS: Final = ROW_PATH == "python"
"""Whether the threads that process rows should take turns, because each row needs the interpreter's lock."""

REASON: Final = _CHOICE[1]
"""Reason of the choice, as a clause."""


def choose(name: str, python: _T) -> _T:
    """Return the compiled module's object with this name if the compiled path is in use, otherwise `python`, its equivalent."""
    chosen: _T = python if _CHOICE[2] is None else getattr(_CHOICE[2], name)
    return chosen


def plug_in(client_library: str) -> Any:
    """Return the compiled module if the librdkafka that `client_library` is linked with accepts it as a plug-in, else None."""
    module = _CHOICE[2]
    return module if module is not None and module.ProducerHandle.bind(client_library, module.__file__) else None
