"""What is said where no daemon can be asked."""

from __future__ import annotations

import pytest

from cdc.config import parse
from cdc.errors import ConfigurationError
from cdc.local.ports import free_port
from cdc.ops.asking import ask


def test_nobody_listens() -> None:
    port = free_port()
    values = {
        "name": "shop",
        "source": {"uris": ["h:1"]},
        "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"},
        "http": {"listen": f"127.0.0.1:{port}"},
    }
    with pytest.raises(ConfigurationError) as caught:
        ask(parse(values, "the test"), "/status")
    assert str(caught.value).startswith(f"no daemon answers at 127.0.0.1:{port}: connection refused. Start it with ")
