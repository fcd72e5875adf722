"""Parsing of the members' URIs in the configuration: `user:password@host:port`, where `%XX` is a byte."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

NUMBER: Final = re.compile(r"[0-9]{1,5}")
PORT_MAX: Final = 65_535
# Any other word before `://` is a user, whose password begins with `//`. It must not be taken for a user, whom logs name.
_SCHEME: Final = re.compile(r"^((tcp|tarantool):)?//")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")
_URI_EXAMPLE: Final = "write it as user:password@host:3301, where %XX is a byte"


def parts_of_uri(uri: str) -> tuple[str, int, str, str | None]:
    """Return host, port, user and password of a URI. The password is None if there is none, and empty in `user:@host:port`.

    Raises ValueError, whose text contains nothing of the URI.

    Python's urllib isn't used for this: it drops tabs and line ends from a password, and shows the password in its errors.
    """
    before, at, place = _SCHEME.sub("", uri, count=1).rpartition("@")
    host, _, number = place.removesuffix("/").rpartition(":")
    if not _HOST.fullmatch(host):
        raise ValueError(f"is a URI without host and port; {_URI_EXAMPLE}")
    if not NUMBER.fullmatch(number) or not 0 < int(number) <= PORT_MAX:
        raise ValueError(f"is a URI whose port is not a number from 1 to {PORT_MAX}; {_URI_EXAMPLE}")
    name, colon, secret = before.partition(":")
    try:
        user, password = unquote(name, errors="strict"), unquote(secret, errors="strict")
    except UnicodeDecodeError:
        user = password = ""
        at = "%"
    if at == "%":  # raised outside the handler, because the handler's error contains the password
        raise ValueError(f"is a URI whose user or password isn't UTF-8 after %XX is decoded; {_URI_EXAMPLE}")
    return host.lower().strip("[]"), int(number), user, password if colon else None
