"""What to say of a row that can't be applied to its key's tuple, and how to end the doubt about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from cdc.errors import ImageError
from cdc.protocol.codec import tuple_values
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import SpaceForm
from cdc.tuples.operations import steps

REBUILD: Final = (
    "stop the daemon, remove the directory images in state.path, and start it once with --rebuild-state: it takes a snapshot"
)
PASSED_OVER: Final = "an earlier row of this key couldn't be applied, so the key's tuple is unknown"

_DOUBLE_EXACT_MAX: Final = 1 << 53
"""Largest integer up to which Lua's numbers are exact."""


def unappliable(form: SpaceForm, key: bytes, before: bytes, reason: str, quoted: str = "") -> ImageError:
    """Return the error for a row that can't be applied to the tuple `before` of the key that the store knows as `key`.

    `quoted` is what the reason has of received data.
    """
    error = ImageError(
        reason,
        'With format.on_image_error = "dlq" such rows go to the dead-letter topic, and the tuple is unknown until the next '
        f"INSERT, REPLACE or DELETE of its key. To cause one, write the row of that key once more on the leader. Or {REBUILD}.",
        detail=f"the tuple was {before.hex(' '):.2000}; a command that writes it once more: {_remedy(form, before)}",
    )
    error.key = key
    return error.quoting(quoted)


def in_another_notation(form: SpaceForm, request: str, asked: Sequence[bytes], stored: Sequence[bytes]) -> tuple[str, str]:
    """Return the reason why a request of a vinyl space may or may not have found its row, as its key is written differently;
    and how both are written."""
    return (
        f"{request} of vinyl space {form.name!r} writes its key in another way than the stored row: vinyl finds a row on disk "
        "only by the bytes of its key, so only the server knows whether this request found the row",
        f"the request has {_as_written(asked)}, the row {_as_written(stored)}",
    )


def _as_written(parts: Sequence[bytes]) -> str:
    values = ", ".join([lua_value(tuple_values(b"\x91" + part)[0]) for part in parts])
    written = ", ".join([f"{part.hex(' '):.200}" for part in parts])
    return f"{values} (bytes {written})"


def _remedy(form: SpaceForm, before: bytes) -> str:
    """Return the command that writes the key's row once more."""
    key = ", ".join([lua_value(value) for value in _key_values(form, before)])
    space = f"local s = box.space[{lua_text(form.name)}]"
    if form.is_vinyl:
        # REQ is the iterator that finds the row in every notation, because it does not ask the bloom filters. Vinyl logs the
        # DELETE of a row that is gone; memtx would not, but there the row's own DELETE has ended the doubt.
        return (
            f"box.atomic(function() {space} local t = s:select({{{key}}}, {{iterator = 'REQ'}})[1] "
            f"if t then s:replace(t) else s:delete({{{key}}}) end end)"
        )
    return f"box.atomic(function() {space} s:replace(s:get({{{key}}})) end)"


def _key_values(form: SpaceForm, tuple_: bytes) -> list[Any]:
    values = []
    for part in form.key_parts:
        value = tuple_values(tuple_)[part.field]
        for step in steps(part.path):
            value = value[step]
        values.append(value)
    return values


def lua_value(value: Any) -> str:
    """Return a key's value as a Lua expression, `…` if there is none in all versions."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if abs(value) > _DOUBLE_EXACT_MAX:
            return f"{value}ULL" if value > 0 else f"{value}LL"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case str():
            return lua_text(value)
        case Decimal():
            return f"require('decimal').new('{value}')"
        case UUID():
            return f"require('uuid').fromstr('{value}')"
        case Datetime(seconds, nanosecond, minutes, _):
            # The server takes the timestamp for the time of that zone.
            return f"require('datetime').new{{timestamp = {seconds + minutes * 60}, nsec = {nanosecond}, tzoffset = {minutes}}}"
    return "…"


def lua_text(text: str) -> str:
    """Return a text as a Lua string. Bytes that aren't UTF-8 are written by their numbers."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "'" + "".join([char if not "\udc80" <= char <= "\udcff" else f"\\{ord(char) - 0xDC00}" for char in escaped]) + "'"
