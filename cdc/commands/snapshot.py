"""`tarantool-cdc snapshot`: has the running daemon publish all rows of some spaces again, or stop or pause that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cdc.config import Config
from cdc.daemon.http_settings import access_of
from cdc.errors import ConfigurationError
from cdc.ops.asking import ask

_SAID: Final = {
    "stop": "the daemon publishes no more rows of requests for {}",
    "pause": "requests for rows pause until `tarantool-cdc snapshot --resume`",
    "resume": "requests for rows go on",
}


def snapshot(
    config: Config, action: str, spaces: Sequence[str], say: Callable[[str], object], *, where: str | None = None
) -> None:
    """Send an order to the daemon: `execute`, `stop`, `pause` or `resume`.

    Raises ConfigurationError, or RequestError with the daemon's answer.
    """
    if action == "execute":
        _execute(config, spaces, say, where)
        return
    if where is not None or (spaces and action != "stop"):
        raise ConfigurationError(f"--{action} takes no {'--where' if where is not None else 'spaces'}")
    body: dict[str, Any] = {"spaces": list(spaces)} if spaces else {}
    ask(config.name, config.http.address, f"/snapshot/{action}", body, access_of(config))
    say(_SAID[action].format(", ".join(spaces) or "any space"))


def _execute(config: Config, spaces: Sequence[str], say: Callable[[str], object], where: str | None) -> None:
    if not spaces:
        raise ConfigurationError("name the spaces whose rows are to be published again")
    images = config.state.images
    if images != "full":
        raise ConfigurationError(
            f'state.images is "{images}": the daemon keeps no rows that it could publish again',
            'Set it to "full", or restart the daemon with snapshot.mode = "always".',
        )
    filter_ = {} if where is None else {"where": where}
    answer = ask(config.name, config.http.address, "/snapshot", {"spaces": list(spaces), **filter_}, access_of(config))
    chosen = "all rows" if where is None else "the chosen rows"
    say(
        f"the daemon publishes {chosen} of {', '.join(spaces)} for the request {answer['id']}; `tarantool-cdc status` shows how "
        "far it is, and how the last one ended"
    )
