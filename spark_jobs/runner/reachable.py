"""A check whether a Kafka broker accepts connections from this host. Spark itself reports a failure only after some minutes."""

from __future__ import annotations

import socket
from typing import Final

_TIMEOUT_SECONDS: Final = 2.0


def refusals(bootstrap_servers: str) -> str | None:
    """Return why no address in `bootstrap_servers` (host:port, comma-separated) accepts a connection; None if one does."""
    reasons = []
    for address in filter(None, (address.strip() for address in bootstrap_servers.split(","))):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            reasons.append(f"{address}: not HOST:PORT")
            continue
        try:
            # In Kafka, an address may begin with the listener's protocol.
            place = host.rpartition("://")[2].removeprefix("[").removesuffix("]"), int(port)
            socket.create_connection(place, _TIMEOUT_SECONDS).close()
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
        else:
            return None
    return "; ".join(reasons) or "no address is given"
