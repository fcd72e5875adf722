"""The TAP server's HTTP page on a thread of its own: /metrics (Prometheus), /health and /status."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from cdc import log
from cdc.feeds.tap.server import Client, TapServer
from cdc.ops.bounded_server import BoundedHandler, BoundedServer
from cdc.ops.metrics import LOG_LINES_LOST


def _own(server: TapServer) -> dict[str, Any]:
    """Return the state of the server's own store, or zeros if there is none."""
    store = server.feed.own_store
    if store is None:
        return {"rows": 0, "bytes": 0, "seq": 0, "lag": 0, "is_loading": False, "incomplete": []}
    return {
        "rows": store.row_count,
        "bytes": store.size_bytes,
        "seq": store.position.seq,
        "lag": max(0, server.feed.last - store.position.seq),
        "is_loading": store.position.is_loading,
        "incomplete": store.incomplete,
    }


SERVER: Final[dict[str, tuple[str, Callable[[TapServer], float]]]] = {
    "tarantool_cdc_tap_connections": (
        "Open connections, including those that haven't asked for a feed yet",
        lambda s: s.connection_count,
    ),
    "tarantool_cdc_tap_sessions": ("Clients that may resume where they stopped, connected or not", lambda s: s.session_count),
    "tarantool_cdc_tap_seq": ("Seq of the newest change that the server has read", lambda s: s.feed.last),
    "tarantool_cdc_tap_buffer_bytes": ("Size of the newest changes in memory, in bytes", lambda s: s.feed.ring.byte_count),
    "tarantool_cdc_tap_store_rows": (
        "Rows in the server's own store (tap.store_path), including rows that are still to be removed",
        lambda s: _own(s)["rows"],
    ),
    "tarantool_cdc_tap_store_bytes": ("Size of the server's own store file, in bytes", lambda s: _own(s)["bytes"]),
    "tarantool_cdc_tap_store_lag": (
        "Changes that the server has read and its own store doesn't have yet",
        lambda s: _own(s)["lag"],
    ),
    "tarantool_cdc_tap_store_incomplete": (
        "Spaces of which the server's own store may lack rows",
        lambda s: len(_own(s)["incomplete"]),
    ),
}
SERVER_COUNTERS: Final[dict[str, tuple[str, Callable[[TapServer], float]]]] = {
    "tarantool_cdc_tap_dropped": (
        "Connections that were dropped because the client stalled or fell behind",
        lambda s: s.dropped_count,
    ),
    "tarantool_cdc_tap_refused": ("Connections that were rejected because of tap.clients_max", lambda s: s.refused_count),
    "tarantool_cdc_tap_lost": (
        "Changes that are no longer on any topic; if the daemon's store is used, clients were filled again from it",
        lambda s: s.feed.reader.lost_count if s.feed.reader is not None else 0,
    ),
    "tarantool_cdc_tap_log_lines_lost": (LOG_LINES_LOST, lambda _: log.lost_count()),
}
CLIENT: Final[dict[str, tuple[str, Callable[[TapServer, Client], float]]]] = {
    "tarantool_cdc_tap_client_seq": ("Seq of the last change that was sent", lambda _, c: c.stream.seq),
    "tarantool_cdc_tap_client_lag": (
        "Changes that haven't been sent to the client yet",
        lambda s, c: max(0, s.feed.last - c.stream.seq),
    ),
    "tarantool_cdc_tap_client_unacked": (
        "Messages that the client hasn't acknowledged",
        lambda _, c: c.stream.window.unacked_messages if c.stream.window is not None else 0,
    ),
    "tarantool_cdc_tap_client_unacked_bytes": (
        "Size of the unacknowledged messages, in bytes",
        lambda _, c: c.stream.window.unacked_bytes if c.stream.window is not None else 0,
    ),
    "tarantool_cdc_tap_client_sent_bytes": ("Bytes sent over the client's connection", lambda _, c: c.stream.sent_bytes),
}
_CLIENTS_MAX: Final = 2_000
"""Number of clients whose own metrics are shown."""


class _Collector(Collector):
    def __init__(self, server: TapServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        server = self._server
        for name, (meaning, value) in SERVER.items():
            yield GaugeMetricFamily(name, meaning, value=value(server))
        for name, (meaning, value) in SERVER_COUNTERS.items():
            yield CounterMetricFamily(name, meaning, value=value(server))
        clients = list(server.clients.items())[:_CLIENTS_MAX]
        for name, (meaning, of) in CLIENT.items():
            family = GaugeMetricFamily(name, meaning, labels=["client"])
            for client, found in clients:
                family.add_metric([client], of(server, found))
            yield family


def status(server: TapServer, name: str) -> dict[str, Any]:
    """Return the server's state for /status and `tarantool-cdc status`."""
    now = time.time()
    reader, updater, sink = server.feed.reader, server.feed.store_updater, server.sink
    error = reader.error if reader is not None else None
    if error is None and updater is not None:
        error = updater.error
    return {
        "name": name,
        "seq": server.feed.last,
        "error": error,
        "log_lines_lost": log.lost_count(),
        "connections": server.connection_count,
        "sessions": server.session_count,
        "clients": [
            {
                "name": client,
                "address": found.address,
                "seconds": round(now - found.since, 1),
                "state": "filling" if found.stream.is_filling else "following",
                **{key.removeprefix("tarantool_cdc_tap_client_"): of(server, found) for key, (_, of) in CLIENT.items()},
            }
            for client, found in list(server.clients.items())
        ],
        "store": _own(server) if server.feed.own_store is not None else None,
        "memcached": None
        if sink is None
        else {
            "address": sink.shown,
            "error": sink.error,
            "seq": sink.stream.seq if sink.stream is not None else None,
            "left_out": sink.left_out_count,
        },
    }


class Page:
    """HTTP server of one TAP server's state."""

    def __init__(self, address: tuple[str, int], server: TapServer, name: str, allowed_hosts: Collection[str] = ()) -> None:
        """Listen on `address`; accept also the host names `allowed_hosts`.

        Raises ConfigurationError if the address can't be used.
        """
        registry = CollectorRegistry()
        registry.register(_Collector(server))

        class Handler(BoundedHandler):
            def do_GET(self) -> None:  # noqa: N802 - the library's name
                match self.path.split("?")[0]:
                    case "/metrics":
                        self.answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                    case "/health":
                        error = status(server, name)["error"]
                        self.answer(503 if error else 200, "text/plain", f"{error or 'well'}\n".encode())
                    case "/status":
                        self.answer(200, "application/json", json.dumps(status(server, name), indent=1).encode())
                    case _:
                        self.answer(404, "text/plain", b"there are /metrics, /health and /status\n")

        self._server = BoundedServer.listening("tap.http", address, Handler, allowed_hosts)
        self.port = self._server.port
        self._server.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()
