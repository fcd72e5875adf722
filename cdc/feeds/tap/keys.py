"""Clients' keys of rows, and the keys' vbuckets.

The default template is `{space}:{key}`: the space's name, and the primary key's values as text, joined by ":". A key template
may name any field of the row instead: `user:{id}`. The key of a deleted row is made from the row's last values. A row that lacks
such a field has no key, and is left out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cdc.config.tap import KEY_FIELD
from cdc.events.json_values import encode

_SINGLE: Final = re.compile(rb'\{"(?:[^"\\])*":(?:(-?[0-9]+)|"([^"\\]*)")\}')
"""Key of one part that is an integer, or a string that JSON contains without escapes.

A part whose name contains a quote doesn't match.
"""
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
SPACE: Final = "space"
KEY: Final = "key"


def vbucket_of(key: bytes, mask: int) -> int:
    """Return a key's vbucket, as memcached's and Couchbase's clients compute it.

    `mask` is the number of vbuckets (at most 32,768) minus 1.
    """
    return zlib.crc32(key) >> 16 & mask


def joined(key: bytes) -> bytes:
    """Return the values of a topic message's key (a JSON object) as text, joined by ":"."""
    # If only digits follow the first name, the key has one part, an integer: the commonest key.
    rest = key[key.find(b'":') + 2 : -1]
    if rest.isdigit():
        return rest
    single = _SINGLE.fullmatch(key)
    if single is not None:
        return single[1] or single[2] or b""
    return b":".join(_text(value) for value in _decode(key).values())


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else encode(value)


class KeyTemplate:
    """Maker of the client's keys of one space."""

    def __init__(self, template: str, space: str, on_missing: Callable[[str, str], None] = lambda *_: None) -> None:
        """`on_missing` is called with the space and the field for each row that lacks a field of the template."""
        names = KEY_FIELD.findall(template)
        self.needs_row = not set(names) <= {SPACE, KEY}
        """Whether the template contains fields besides the space's name and the primary key."""
        self._space = space
        self._on_missing = on_missing
        self.prefix: bytes | None = None
        """Text before the primary key's values, if the key contains nothing else; otherwise None."""
        self._parts = KEY_FIELD.split(template)
        """Literal text and field names, alternating."""
        self.of_key: Callable[[bytes], bytes] = self._of_key
        """Function that makes the client's key from the topic message's key."""
        prefix, _, rest = template.partition("{key}")
        if names == [SPACE, KEY] and not rest:
            start = self.prefix = prefix.replace("{space}", space).encode()

            def of_key(key: bytes) -> bytes:
                # The commonest key is one integer (see `joined`).
                digits = key[key.find(b'":') + 2 : -1]
                return start + (digits if digits.isdigit() else joined(key))

            self.of_key = of_key

    def _of_key(self, key: bytes) -> bytes:
        return self._filled({SPACE: self._space.encode(), KEY: joined(key)})

    def of_row(self, key: bytes, row: bytes) -> bytes | None:
        """Return the client's key, made from the topic message's key and the row; None if the row lacks a field."""
        fields = {name: _text(value) for name, value in _decode(row).items()}
        try:
            return self._filled({**fields, SPACE: self._space.encode(), KEY: joined(key)})
        except KeyError as error:
            self._on_missing(self._space, error.args[0])
            return None

    def _filled(self, values: dict[str, bytes]) -> bytes:
        return b"".join(values[part] if place % 2 else part.encode() for place, part in enumerate(self._parts))
