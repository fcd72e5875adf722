"""What a daemon tells catalogs of lineage, if its configuration wants that; cdc.ops.lineage sends it."""

from __future__ import annotations

from collections.abc import Callable

from cdc.config import Config
from cdc.daemon.start import options_of
from cdc.kafka.names import names_of
from cdc.ops.lineage import Lineage
from cdc.ops.lineage_places import Place
from cdc.ops.status import Status
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.reports.flows import flows


def of_configuration(config: Config, status: Status, checkpoint: Callable[[], Checkpoint]) -> Lineage | None:
    """Return what tells of the lineage; None unless that is wanted. Raises ConfigurationError."""
    section = config.lineage
    if not section.enabled:
        return None
    host, port = config.source.addresses()[0]
    place = Place(section.namespace, config.name, f"{host}:{port}", config.kafka.bootstrap_servers)
    names, options = names_of(config.kafka), options_of(config)
    return Lineage(place, section.interval_ms / 1000, status, lambda: list(flows(checkpoint(), names, options)))
