"""`tarantool-cdc snapshot`: has the running daemon publish all rows of some spaces again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cdc.config import Config
from cdc.errors import ConfigurationError
from cdc.ops.asking import ask


def snapshot(config: Config, spaces: Sequence[str], say: Callable[[str], object]) -> None:
    """Send the request to the daemon. Raises ConfigurationError, or RequestError with the daemon's answer."""
    images = config.state.images
    if images != "full":
        raise ConfigurationError(
            f'state.images is "{images}": the daemon keeps no rows that it could publish again',
            'Set it to "full", or restart the daemon with snapshot.mode = "always".',
        )
    ask(config.name, config.http.address, "/snapshot", {"spaces": list(spaces)})
    say(f"the daemon publishes all rows of {', '.join(spaces)}; `tarantool-cdc status` shows its progress")
