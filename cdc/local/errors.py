"""Errors of the servers on this machine."""

from __future__ import annotations

from cdc.errors import CdcError


class LocalServerError(CdcError):
    """A local server, or a part that it needs, is unavailable. The message ends with the last lines of its log."""


class PortTakenError(LocalServerError):
    """The server found its port in use. Starting it again on another port heals this."""
