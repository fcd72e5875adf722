"""What docs/tap.md says of bounds and times is what the server has."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.tap import TapSection
from cdc.feeds.tap import catching_up, feed, live, newest, server, stored, stream, topic_thread

_TEXT = " ".join((Path(__file__).parents[3] / "docs" / "tap.md").read_text().split())
_KIB, _MIB = 1024, 1024 * 1024
_WORDS = {4: "four", 5: "five", 10: "ten"}


@pytest.mark.parametrize(
    "sentence",
    [
        f"up to {topic_thread.AHEAD_BYTES // _MIB} MiB for the server, as much for its own store",
        f"{live._FOR_ONE_BYTES // _MIB} MiB for each client that is catching up",
        f"{server._WRITE_BYTES // _KIB} KiB that wait in it",
        f"another {2 * stored._ROWS_BYTES // _KIB} KiB of rows wait for it",
        f"With more than {feed._SHARED_BYTES // feed._SHARE_BYTES_MAX} connections",
        f"together have {feed._SHARED_BYTES // _MIB} MiB of each kind, down to {feed._SHARE_BYTES_MIN // _KIB} KiB a client",
        f"{1000 * newest._GATHER_SECONDS:g} s with a thousand clients",
        f"the server stops reading for up to {_WORDS[int(newest._HOLD_SECONDS)]} seconds for clients that follow",
        f"At most {_WORDS[catching_up._PLACES]} clients do so at a time",
        f"they take turns of {_WORDS[int(catching_up._TURN_SECONDS)]} seconds",
        f"with more than {stream._CHANGED_BYTES_MAX // _MIB} MiB of changed keys meanwhile",
    ],
)
def test_bounds(sentence: str) -> None:
    assert sentence in _TEXT


def test_acks_are_on_the_disk_within_a_second() -> None:
    assert server._SAVE_SECONDS == 1
    assert "sends again what clients acknowledged in the last second before the kill, at most" in _TEXT


def test_what_others_rely_on() -> None:
    """Whoever connects without a word of configuration finds the server here, and keys and values of this form."""
    tap = TapSection()
    assert (tap.listen, tap.spaces, tap.key, tap.value) == ("127.0.0.1:11210", [".*"], "{space}:{key}", "json")
    assert (tap.session_timeout_ms, tap.users, tap.tls_certificate) == (600_000, {}, None)
