"""File of the ids that the daemon's topics had in the last run, `state.path/topics`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import structlog

FILE = "topics"


def read(directory: Path, cluster_id: str | None) -> dict[str, str]:
    """Return the ids by topic, as of the last run with this cluster; none if they are unknown."""
    try:
        content = json.loads((directory / FILE).read_bytes())
        is_same = content["cluster_id"] == cluster_id
        return {str(topic): str(id_) for topic, id_ in content["ids"].items()} if is_same else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write(directory: Path, cluster_id: str | None, ids: Mapping[str, str]) -> None:
    """Write the ids. A failure is only logged: without the file a topic that was created again isn't noticed."""
    path, new = directory / FILE, directory / f".{FILE}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(json.dumps({"cluster_id": cluster_id, "ids": dict(ids)}))
        os.replace(new, path)
    except OSError as error:
        structlog.get_logger().info("the ids of the topics can't be kept", path=str(path), reason=error.strerror)
