"""What keys are called at a client, and in which vbucket they are.

`{space}:{key}` by default: the space's name, and the primary key's values as text, joined by ":". A key template may name any
field of the row instead: `user:{id}`. Of a row that is gone the fields are those that it had. A row that lacks
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
"""A key of one part that is a whole number, or a string that JSON has as it is. A part whose name has a quote isn't met."""
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
SPACE: Final = "space"
KEY: Final = "key"


def vbucket_of(key: bytes, mask: int) -> int:
    """As memcached's and Couchbase's clients find it; `mask` is the number of vbuckets, 32,768 at most, less one."""
    return zlib.crc32(key) >> 16 & mask


def joined(key: bytes) -> bytes:
    """The values of a key of the topics (a JSON object) as text, joined by ":"."""
    # Where all that follows the first name is digits, there is one part, a whole number: the commonest key.
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
    """Makes the keys of one space."""

    def __init__(self, template: str, space: str, on_missing: Callable[[str, str], None] = lambda *_: None) -> None:
        """`on_missing` is told the space and the field of each row that lacks one of the key's."""
        names = KEY_FIELD.findall(template)
        self.needs_row = not set(names) <= {SPACE, KEY}
        """Whether the primary key's values aren't enough."""
        self._space = space
        self._on_missing = on_missing
        self.prefix: bytes | None = None
        """What stands before the primary key's values, if nothing else is in the key."""
        self._parts = KEY_FIELD.split(template)
        """What stands as it is, and names, by turns."""
        self.of_key: Callable[[bytes], bytes] = self._of_key
        """From the primary key as the topics have it."""
        prefix, _, rest = template.partition("{key}")
        if names == [SPACE, KEY] and not rest:
            start = self.prefix = prefix.replace("{space}", space).encode()

            def of_key(key: bytes) -> bytes:
                # The commonest key is one whole number (see `joined`).
                digits = key[key.find(b'":') + 2 : -1]
                return start + (digits if digits.isdigit() else joined(key))

            self.of_key = of_key

    def _of_key(self, key: bytes) -> bytes:
        return self._filled({SPACE: self._space.encode(), KEY: joined(key)})

    def of_row(self, key: bytes, row: bytes) -> bytes | None:
        """From the primary key and the row, as the topics have them; None if the row lacks a field."""
        fields = {name: _text(value) for name, value in _decode(row).items()}
        try:
            return self._filled({**fields, SPACE: self._space.encode(), KEY: joined(key)})
        except KeyError as error:
            self._on_missing(self._space, error.args[0])
            return None

    def _filled(self, values: dict[str, bytes]) -> bytes:
        return b"".join(values[part] if place % 2 else part.encode() for place, part in enumerate(self._parts))
