"""The greeting, the first 128 bytes of a connection: the server's version and UUID, and the salt for the password.

Line 1: `Tarantool 2.6.0 (Binary) 6da593ef-ab28-4913-a250-d41259bdbe10`, padded with spaces to 63 bytes and a newline.
Line 2: the salt in base64, padded likewise.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from cdc.errors import ProtocolError

GREETING_BYTES: Final = 128
SALT_BYTES: Final = 20
_LINE: Final = re.compile(rb"Tarantool (\d+)\.(\d+)\.(\d+)(\S*) \(([^)]*)\) ([0-9a-f-]{36})\s*")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The server's version, its UUID, and the salt for the password."""

    version: tuple[int, int, int]
    uuid: UUID
    salt: bytes

    @property
    def version_text(self) -> str:
        """The version as people write it: `2.11.5`."""
        return ".".join(map(str, self.version))


def parse_greeting(data: bytes) -> Greeting:
    """Parse a greeting of exactly GREETING_BYTES. Raises ProtocolError if it isn't the greeting of Tarantool's binary port."""
    line, rest = data[:64], data[64:]
    match = _LINE.fullmatch(line)
    if len(data) != GREETING_BYTES or match is None:
        raise ProtocolError(
            f"the server's greeting is not Tarantool's: {bytes(line[:40])!r}",
            "Check that source.uris names Tarantool's binary port, not a console or another service.",
        )
    if match[5] != b"Binary":
        raise ProtocolError(
            f"the server speaks {match[5].decode('ascii', 'replace')!r} on this port",
            "Use the port of box.cfg.listen, not the console's port.",
        )
    try:
        salt = base64.b64decode(rest.strip(), validate=True)
        uuid = UUID(match[6].decode())
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"the server's greeting can't be read: {error}") from error
    if len(salt) < SALT_BYTES:
        raise ProtocolError(f"the server's salt has {len(salt)} bytes, {SALT_BYTES} are needed")
    version = (int(match[1]), int(match[2]), int(match[3]))
    return Greeting(version=version, uuid=uuid, salt=salt[:SALT_BYTES])
