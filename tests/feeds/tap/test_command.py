"""What `tap` is told on its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc import config
from cdc.errors import ConfigurationError
from cdc.feeds.tap.command import tap


@pytest.mark.parametrize("to", ["", "cache", ":11211", "cache:", "cache:0", "cache:65536", "cache:x"])
def test_where_no_memcached_can_be(tmp_path: Path, to: str) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["localhost:1"]},
        "kafka": {"bootstrap_servers": "localhost:1", "topic_prefix": "shop"},
        "tap": {"path": tmp_path / "tap"},
    }
    with pytest.raises(ConfigurationError, match="--to") as raised:
        tap(config.parse(values, "the test"), to)
    assert f"--to {to} is no address" in str(raised.value)
    assert not (tmp_path / "tap").exists()
