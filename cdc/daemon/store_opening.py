"""Opening of the state store at a start: a lost one is set aside, and another daemon's is refused."""

from __future__ import annotations

import structlog

from cdc.config import Config
from cdc.daemon import admission
from cdc.errors import StateError, StateLostError
from cdc.store.files import set_aside
from cdc.store.writer import StateWriter


def open_store(config: Config) -> StateWriter:
    """Return the writer of the daemon's store. Raises StateError, also if the store belongs to another daemon."""
    path, interval_seconds = admission.store_path(config), config.state.flush_interval_ms / 1000
    try:
        writer = StateWriter(path, config.name, interval_seconds)
    except StateLostError as error:
        log = structlog.get_logger().bind(name=config.name)
        log.warning("rebuilding the state store", reason=error.message, old=str(set_aside(path)))
        writer = StateWriter(path, config.name, interval_seconds)
    try:
        admission.check_store_is_ours(config, writer.names())
    except StateError:
        writer.close()
        raise
    return writer
