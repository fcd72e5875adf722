"""What can go wrong with a server on this machine."""

from __future__ import annotations

from cdc.errors import CdcError


class LocalServerError(CdcError):
    """A local server, or what it is started from, isn't to be had; the message ends with the last lines of its log."""


class PortTakenError(LocalServerError):
    """The server found its port in use; starting it again on another one heals this."""
