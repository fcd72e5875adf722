"""`check` tells before a start that a field's type isn't known."""

from __future__ import annotations

import pytest

from cdc.commands import check
from cdc.config import parse
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.commits.checkpoint import Checkpoint


@pytest.mark.parametrize(("images", "finding_count"), [("full", 1), ("none", 0)])
def test_a_type_of_the_future(images: str, finding_count: int) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["127.0.0.1:3301"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"},
        "state": {"images": images},
    }
    config = parse(values, "the test")
    row = [512, 1, "users", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}, {"name": "at", "type": "instant"}]]
    schema = SchemaTracker([StoredSpace(512, row, {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 0)])
    said: list[str] = []
    findings = list(check._published(config, schema, None, Checkpoint(), lambda line: said.append(str(line))))
    assert len(findings) == finding_count
    assert all("the field 'at' of space 'users'" in finding.sentence for finding in findings)
    assert len(said) == 1 - finding_count
