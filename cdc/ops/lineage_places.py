"""What names in a lineage begin with."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The job's namespace and name, host:port of a member, and Kafka's servers as its clients get them."""

    namespace: str
    job: str
    member: str
    bootstrap_servers: str
