"""Asking a running daemon, over the HTTP address of its configuration."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final

from cdc.errors import CdcError, ConfigurationError, RequestError
from cdc.stream.ownership import NameTakenError

_ASK_SECONDS: Final = 30.0
"""Longer than the daemon takes to say that it is too busy."""
_STATUS_SECONDS: Final = 5.0

Address = tuple[str, int]


def ask(name: str, address: Address | None, path: str, question: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the running daemon `name` answers at http.listen's address.

    Raises ConfigurationError if there is none, or another, and RequestError if it refuses.
    """
    if address is None:
        raise ConfigurationError("http.listen is empty: this daemon can't be asked", "Give it an address and restart it.")
    host, port = address
    try:
        # Before anything is asked of it: another configuration may have the same address.
        status = _get(address, "/status", None)
        if status["name"] != name:
            raise ConfigurationError(
                f"at {host}:{port} the daemon {status['name']!r} answers, not {name!r}", "Correct http.listen."
            )
        return status if path == "/status" else _get(address, path, question)
    except urllib.error.HTTPError as error:
        with error:
            raise RequestError(_refusal(error.read()) or f"{host}:{port} answers {error.code} to {path}") from error
    except (HTTPException, OSError, ValueError, KeyError, TypeError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        refusal = reason.strerror.lower() if isinstance(reason, OSError) and reason.strerror else reason
        raise ConfigurationError(
            f"no daemon answers at {host}:{port}: {refusal}", "Start it with `tarantool-cdc run`, or correct http.listen."
        ) from error


def tap_status(name: str, address: Address | None) -> dict[str, Any] | None:
    """What the TAP server of the daemon `name` says of itself at tap.http_listen's address; None if there is none."""
    if address is None:
        return None
    try:
        found = _get(address, "/status", None)
    except (HTTPException, OSError, ValueError):
        return None
    return found if found.get("name") == name and "clients" in found else None


def who_listens(name: str, address: Address, how_to_end_it: str) -> CdcError | None:
    """What to say to a daemon `name` that can't listen at an address because another daemon does; None if none does.

    `how_to_end_it` is said of one of the same name.
    """
    found = _status_at(address)
    if found is None:
        return None
    other, process = found["name"], found.get("process_id")
    place = f"{address[0]}:{address[1]}"
    if other == name:
        return NameTakenError(
            f"a daemon {name!r} is at work and listens at {place} (http.listen)"
            f"{f', process {process}' if isinstance(process, int) else ''}, and there can be one of a name",
            f"Stop that one first{how_to_end_it}. If this is to be another daemon, give it another name, kafka.topic_prefix, "
            "state.path and http.listen.",
        )
    return ConfigurationError(
        f"http.listen = {place} can't be had: the daemon {other!r} listens there", f"Give {name!r} another port in http.listen."
    )


def name_at(address: Address) -> str | None:
    """The name of the daemon that answers at an address; None if none does."""
    found = _status_at(address)
    return None if found is None else str(found["name"])


def _status_at(address: Address) -> dict[str, Any] | None:
    try:
        found = _get(address, "/status", None)
        # Whoever else answers there may answer anything.
        return found if isinstance(found["name"], str) else None
    except (HTTPException, OSError, ValueError, KeyError, TypeError):
        return None


def _get(address: Address, path: str, question: dict[str, Any] | None) -> dict[str, Any]:
    host, port = address
    request = urllib.request.Request(
        f"http://{host}:{port}{path}",
        data=None if question is None else json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    timeout = _STATUS_SECONDS if question is None else _ASK_SECONDS
    # A daemon's address is asked for directly, whatever proxy there is for other sites.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _refusal(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return None
