"""Parser of JSON paths as the server reads them, token by token: `.name`, `["any text"]`, `[3]`, `[*]`, and a leading name.

A path is bytes: quoted text may be any UTF-8, and is compared as bytes. In a path, array places count from 1, whatever
INDEX_BASE the request has; the returned tokens count from 0.

Unquoted names consist of letters, digits and underscores. The server uses Unicode's property Alphabetic, which Python's
library lacks. This parser treats marks as alphabetic, and thus accepts a few names that the server refuses.

Sources: src/lib/json/json.c, and src/box/tuple.c for where a token leads.
"""

from __future__ import annotations

import unicodedata
from enum import Enum
from typing import Final

from cdc.protocol import layout


class Mark(Enum):
    """Tokens that are neither a place nor a key."""

    END = "the path's end"
    ANY = "[*]"


Token = int | bytes | Mark
"""A place in an array (from 0), a key of a map, or one of the marks."""

_PLACE_MAX: Final = 2**31 - 1
_DIGITS: Final = b"0123456789"
_ALPHABETIC: Final = ("L", "Nl", "Nd", "Mn", "Mc")


class PathError(ValueError):
    """The path is malformed at the place that the message names."""


def next_token(path: bytes, offset: int) -> tuple[Token, int]:
    """Return the token at `offset`, and the offset of the next one. Raises PathError."""
    if offset == len(path):
        return Mark.END, offset
    first = path[offset]
    if first == 0x5B:  # [
        return _bracketed(path, offset + 1)
    if first == 0x2E:  # .
        return _name(path, offset + 1)
    if offset:
        raise PathError(f"a step begins with . or [, at {offset}")
    return _name(path, 0)


def follow(data: bytes, position: int, token: Token) -> tuple[int, int] | None:
    """Find a token's target in the value at `position`; return where its key (or element) and its value begin, or None.

    A place in a map denotes the integer key with the same number, counted from 1. Raises IndexError for incomplete data.
    """
    kind = layout.TYPES[data[position]]
    if kind is layout.ARRAY and isinstance(token, int):
        count, begin = layout.header(data, position)
        if token < count:
            for _ in range(token):
                begin = layout.end_of(data, begin)
            return begin, begin
    elif kind is layout.MAP:
        pairs = layout.elements(data, position)
        for (key, _), (value, _) in zip(pairs, pairs, strict=True):
            if isinstance(token, bytes):
                if is_key(data, key, token):
                    return key, value
            elif layout.TYPES[data[key]] in (layout.UNSIGNED, layout.INTEGER) and layout.integer(data, key) - 1 == token:
                return key, value
    return None


def is_key(data: bytes, position: int, key: bytes) -> bool:
    """Return whether the value at `position` is this string. Raises IndexError for incomplete data."""
    if layout.TYPES[data[position]] is not layout.STRING:
        return False
    begin, length = layout.content(data, position)
    return length == len(key) and data.startswith(key, begin)


def _bracketed(path: bytes, offset: int) -> tuple[Token, int]:
    quote = path[offset : offset + 1]
    token: Token
    if quote in (b'"', b"'"):
        end = path.find(quote, offset + 1)
        token = path[offset + 1 : end]
        if end < 0 or not token or not _is_text(token):
            raise PathError(f"no text in quotes at {offset}")
        end += 1
    elif quote == b"*":
        token, end = Mark.ANY, offset + 1
    else:
        end = offset
        while end < len(path) and path[end] in _DIGITS:
            end += 1
        number = int(path[offset : min(end, offset + 12)] or b"0")
        if not 1 <= number <= _PLACE_MAX or end - offset > 11:
            raise PathError(f"no place in an array at {offset}")
        token = number - 1
    if path[end : end + 1] != b"]":
        raise PathError(f"a bracket isn't closed at {end}")
    return token, end + 1


def _name(path: bytes, offset: int) -> tuple[Token, int]:
    end = offset
    while end < len(path):
        width = _width(path[end])
        try:
            symbol = path[end : end + width].decode()
        except UnicodeDecodeError as error:
            raise PathError(f"not UTF-8 at {end}") from error
        category = unicodedata.category(symbol)
        if not (symbol == "_" or (category.startswith(_ALPHABETIC) if end > offset else category.startswith("L"))):
            break
        end += width
    if end == offset:
        raise PathError(f"no name at {offset}")
    return path[offset:end], end


def _width(first: int) -> int:
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
