"""What operators are shown of the configuration, and the values that pages need to explain themselves. It has no secrets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setup:
    """A few settings of a running daemon."""

    shard: str | None = None
    """The shard's name, if the daemon is one of a fleet."""
    kafka: str = ""
    topic_prefix: str = ""
    delivery: str = "exactly_once"
    images: str = "full"
    mode: str = "anonymous"
    state_path: str = ""
    has_registry: bool = False
    ignored_origins: frozenset[int] = frozenset()
    """Origins whose rows the daemon doesn't read."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that the page gets."""
        return {**asdict(self), "ignored_origins": sorted(self.ignored_origins)}
