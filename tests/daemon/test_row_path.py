"""Which row path a configuration takes, and why."""

from __future__ import annotations

from typing import Any

import pytest

from cdc import native
from cdc.config import parse
from cdc.daemon.row_path import path_of


@pytest.mark.skipif(native.ROW_PATH == "python", reason=native.REASON)
@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({}, "native"),
        ({"value": "avro"}, "native"),
        ({"key": "avro", "value": "avro", "source": "lean"}, "native"),
        ({"source": "lean"}, "native"),
        ({"value": "protobuf"}, "python"),
        ({"key": "json_schema"}, "python"),
        ({"envelope": "flat"}, "python"),
    ],
)
def test_formats_without_a_compiled_plan_take_the_python_path(section: dict[str, Any], path: str) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["h:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "format": {**section, "registry": {"url": "http://r:8081"}},
    }
    found, reason = path_of(parse(values, "a test"))
    assert found == path
    assert ("makes only" in reason) == (path == "python")
