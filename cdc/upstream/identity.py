"""The daemon's identity for its masters: an instance UUID derived from its name."""

from __future__ import annotations

import uuid
from typing import Final

# A replica has the same UUID whenever the daemon has the same name: a master from 3.3 on keeps logs for each UUID it sees.
_INSTANCE_NAMESPACE: Final = uuid.UUID("a2bb4f0e-8d5f-5c0d-9a59-6f3a5e0a4c1b")


def instance_uuid(name: str) -> uuid.UUID:
    """Return the UUID under which a daemon's replica is known to its masters."""
    return uuid.uuid5(_INSTANCE_NAMESPACE, name)
