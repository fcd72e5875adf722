"""Client of a running daemon: requests to the HTTP address in its configuration."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

from cdc.errors import CdcError, ConfigurationError, RequestError
from cdc.stream.commits.ownership import NameTakenError

_ASK_SECONDS: Final = 30.0
"""Longer than the time after which the daemon answers that it is too busy."""
_DENIED: Final = (401, 403)
_DENIED_HINT: Final = (
    "Run the command as the daemon's user with the daemon's own configuration, or set http.token or http.tokens_file in both."
)
STATUS_SECONDS: Final = 5.0
"""Time, in seconds, in which a daemon has to show something."""

Address = tuple[str, int]


class SilentError(ConfigurationError):
    """What has the daemon's address doesn't answer."""


class Access(NamedTuple):
    """How a daemon is asked: the token to show, the certificate of its listener if that has TLS, and the file of the token, if
    that isn't there."""

    token: str | None = None
    certificate: Path | None = None
    missing_file: Path | None = None


PLAIN: Final = Access()


def ask(
    name: str, address: Address | None, path: str, body: dict[str, Any] | None = None, access: Access = PLAIN
) -> dict[str, Any]:
    """Send a request to the running daemon `name` at http.listen's address, and return its answer.

    `body` is the body of a POST; without it the request is a GET. Raises ConfigurationError if no daemon, or another one,
    answers there (SilentError if a process has the address), and RequestError if the daemon refuses the request.
    """
    if address is None:
        raise ConfigurationError(
            "http.listen is empty: this daemon accepts no requests", "Set http.listen and restart the daemon."
        )
    host, port = address
    try:
        # Check the name before the request: another configuration may have the same address.
        status = _get(address, "/status", None, access)
        if status["name"] != name:
            shard = _shard_of(status, name)
            if shard is None:
                own = status["name"].removeprefix(f"{name}.")
                hint = f"That is the daemon of the shard {own!r}, which runs alone: add --shard {own}, or start the whole fleet."
                raise ConfigurationError(
                    f"at {host}:{port} the daemon {status['name']!r} answers, not {name!r}",
                    "Correct http.listen." if own == status["name"] else hint,
                )
            return _get(address, f"/shards/{shard}{path}", body, access)
        return status if path == "/status" else _get(address, path, body, access)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _DENIED:
                raise RequestError(
                    f"{host}:{port} refuses: {_text(error.read(), 'error') or 'this token has no right to that'}",
                    _without_token(access.missing_file) if access.missing_file is not None else _DENIED_HINT,
                ) from error
            answer = error.read()
            said = _text(answer, "error") or f"{host}:{port} answers {error.code} to {path}"
            if body is None and error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                # So a fleet's process answers in place of a shard's daemon.
                remedy = _text(answer, "remedy")
                kind = SilentError if remedy is not None else ConfigurationError
                raise kind(
                    f"the daemon {name!r} doesn't answer at {host}:{port}: {said}",
                    remedy or "The status of the fleet's process says why.",
                ) from error
            raise RequestError(said) from error
    except (HTTPException, OSError, ValueError, KeyError, TypeError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            seconds = STATUS_SECONDS if body is None else _ASK_SECONDS
            raise SilentError(
                f"{host}:{port} has answered nothing for {seconds:.0f} s: the process there is frozen or stuck, or its machine "
                "is busy or away",
                f"On that machine, `ss -ltnp 'sport = :{port}'` names the process, and `ps` its state: `kill -CONT` lets one go "
                "on that a signal has stopped (T), `kill -9` ends one that is stuck; then start it again, or have its service "
                "manager do it.",
            ) from error
        refusal = reason.strerror.lower() if isinstance(reason, OSError) and reason.strerror else reason
        raise ConfigurationError(
            f"no daemon answers at {host}:{port}: {refusal}", "Start it with `tarantool-cdc run`, or correct http.listen."
        ) from error


def _without_token(file: Path) -> str:
    return (
        f"The daemon's token isn't there any more, or never was: {file} is missing. The daemon writes it when it starts; if its "
        f"folder was deleted, it went with that. {_DENIED_HINT}"
    )


def _shard_of(status: dict[str, Any], name: str) -> str | None:
    """Return the shard whose daemon has this name, if a fleet has answered that has it; else None."""
    return next((shard for shard in status.get("shards", ()) if f"{status['name']}.{shard}" == name), None)


def tap_status(name: str, address: Address | None) -> dict[str, Any] | None:
    """Return the status that the TAP server of the daemon `name` reports at the address of tap.http; None if none answers
    there."""
    if address is None:
        return None
    try:
        found = _get(address, "/status", None)
    except (HTTPException, OSError, ValueError):
        return None
    return found if found.get("name") == name and "clients" in found else None


def listener_conflict_error(name: str, address: Address, how_to_end_it: str, access: Access = PLAIN) -> CdcError | None:
    """Return the error for a daemon `name` that can't listen at an address where another daemon listens; None if none does.

    `how_to_end_it` is added to the hint if the other daemon has the same name.
    """
    found = _status_at(address, access)
    if found is None:
        return None
    other, process = found["name"], found.get("process_id")
    place = f"{address[0]}:{address[1]}"
    if other == name:
        return NameTakenError(
            f"a daemon {name!r} is running and listens at {place} (http.listen)"
            f"{f', process {process}' if isinstance(process, int) else ''}, and only one daemon of a name may run",
            f"Stop that one first{how_to_end_it}. If this is to be another daemon, give it another name, kafka.topic_prefix, "
            "state.path and http.listen.",
        )
    return ConfigurationError(
        f"can't listen at http.listen = {place}: the daemon {other!r} listens there",
        f"Give {name!r} another port in http.listen.",
    )


def name_at(address: Address, access: Access = PLAIN) -> str | None:
    """Return the name of the daemon that answers at an address; None if none does."""
    found = _status_at(address, access)
    return None if found is None else str(found["name"])


def stands_by_at(address: Address, access: Access = PLAIN) -> bool:
    """Return whether a daemon that waits as a standby answers at an address."""
    found = _status_at(address, access)
    return found is not None and found.get("standby") is not None


def _status_at(address: Address, access: Access) -> dict[str, Any] | None:
    try:
        found = _get(address, "/status", None, access)
        # Another program at this address may answer anything.
        return found if isinstance(found["name"], str) else None
    except (HTTPException, OSError, ValueError, KeyError, TypeError):
        return None


def _get(address: Address, path: str, body: dict[str, Any] | None, access: Access = PLAIN) -> dict[str, Any]:
    """Send a request, and return its answer; without the token where that isn't known, but anyone may see what is asked for."""
    try:
        return _answer_to(address, path, body, access)
    except urllib.error.HTTPError as error:
        # The token that is found may be another daemon's: state.path has changed, or the daemon runs elsewhere.
        if body is None and access.token is not None and error.code in _DENIED:
            with contextlib.suppress(urllib.error.HTTPError):
                return _answer_to(address, path, body, access._replace(token=None))
        raise


def _answer_to(address: Address, path: str, body: dict[str, Any] | None, access: Access) -> dict[str, Any]:
    host, port = address
    scheme = "http" if access.certificate is None else "https"
    headers = {"Content-Type": "application/json"}
    if access.token is not None:
        headers["Authorization"] = f"Bearer {access.token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{scheme}://{host}:{port}{path}", data=data, headers=headers)  # noqa: S310 - see scheme
    timeout = STATUS_SECONDS if body is None else _ASK_SECONDS
    # The request goes directly to the daemon's address, even if the environment sets a proxy.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if access.certificate is not None:
        handlers.append(urllib.request.HTTPSHandler(context=_trusting(access.certificate)))
    with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Return a context that trusts exactly the configured certificate, whoever has signed it, at whichever address."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False  # the address may be an IP address, and the certificate is known
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _text(body: bytes, key: str) -> str | None:
    try:
        return str(json.loads(body)[key])
    except (ValueError, KeyError, TypeError):
        return None
