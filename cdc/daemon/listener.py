"""When the daemon's listener is opened: at its start, or, if it takes another daemon's place, once that one has stopped."""

from __future__ import annotations

import threading
import time
from typing import Final

from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.admission import StartOptions
from cdc.daemon.http_settings import new_server, tokens_of
from cdc.errors import ConfigurationError
from cdc.ops.http import StatusServer
from cdc.ops.rights import make_own_token
from cdc.ops.view import View
from cdc.stream.commits.ownership import NameTakenError

_ENDS_SECONDS: Final = 30.0
"""Time that a fenced daemon may take to stop. It notices the fencing at its next commit, after 5 s at most."""


class Listener:
    """The server at http.listen, if there is one."""

    def __init__(self, config: Config, options: StartOptions, view: View) -> None:
        """Open http.listen, unless another daemon uses it whose place this one takes.

        Raises ConfigurationError if that fails, NameTakenError if a daemon of this name uses the address.
        """
        self._config = config
        self._view = view
        self._server: StatusServer | None = None
        self._is_late = False
        try:
            self._server = new_server(config, view)
        except ConfigurationError as error:
            found = admission.listener_conflict_error(config, options)
            self._is_late = options.take_over and isinstance(found, NameTakenError)
            if not self._is_late:
                raise found or error from error

    @property
    def port(self) -> int | None:
        """Port of the server, or None if there is none."""
        return self._server.port if self._server else None

    def open_late(self, is_stopping: threading.Event) -> None:
        """Open http.listen, if that wasn't possible before, once the fenced daemon that uses the address has stopped.

        Raises ConfigurationError if it doesn't stop in time.
        """
        deadline = time.monotonic() + _ENDS_SECONDS
        while self._is_late and not is_stopping.is_set():
            try:
                self._server = new_server(self._config, self._view)
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
                is_stopping.wait(0.2)
            else:
                self._is_late = False

    def make_token(self) -> None:
        """Make the token with which commands give orders, if none is configured, now that the daemon has its name."""
        if self._server is not None:
            make_own_token(tokens_of(self._config))

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
