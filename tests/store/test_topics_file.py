"""The file of the topics' ids: of the same cluster alone, and its loss stops nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.store.topics_file import FILE, read, write


def test_ids_are_those_of_the_last_run_with_the_same_cluster(tmp_path: Path) -> None:
    assert read(tmp_path, "a") == {}
    write(tmp_path / "state", "a", {"shop.users": "1"})
    write(tmp_path / "state", "a", {"shop.users": "2"})
    assert read(tmp_path / "state", "a") == {"shop.users": "2"}
    assert read(tmp_path / "state", "b") == {}, "all topics have other ids there"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"cluster_id": "a"}', b'{"cluster_id": "a", "ids": 5}'])
def test_what_can_not_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert read(tmp_path, "a") == {}


def test_a_directory_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with capture_logs() as said:
        write(tmp_path / "state", "a", {})
    assert [line["event"] for line in said] == ["the ids of the topics can't be kept"]
