"""The command line: `tarantool-cdc COMMAND`. Exit status 0 well, 1 error, 2 usage; errors go to stderr as sentences."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdc import __version__, config, log
from cdc.errors import CdcError, ConfigurationError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except CdcError as error:
        print(f"tarantool-cdc: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has seen enough.
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tarantool-cdc", description="Publishes Tarantool's changes to Kafka, exactly once.")
    parser.add_argument("--version", action="version", version=f"tarantool-cdc {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=command)
        return sub

    def add_configured(name: str, command: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        sub = add(name, command, summary)
        sub.add_argument("--config", type=Path, required=True, metavar="FILE", help="the TOML file to use")
        return sub

    run = add_configured("run", _run, "follow the master and publish its changes; SIGTERM stops it cleanly")
    run.add_argument(
        "--until-caught-up", action="store_true", help="stop once all is published that the master had when it was reached"
    )
    add_configured("check", _check, "connect, authenticate, vote, compare positions, list what would be published")
    status = add_configured("status", _status, "show the running daemon's position, lag, upstream and throughput")
    status.add_argument("--json", action="store_true", help="all of it, as the daemon gives it")
    decode = add("decode", _decode, "print a captured replication stream as JSON lines")
    decode.add_argument("file", type=Path, metavar="FILE", help="bytes of a server's side of a connection, plain or gzip")
    demo = add("demo", _demo, "start real servers with a workload, and watch the changes arrive; ends by itself")
    demo.add_argument("--keep", action="store_true", help="leave the demo's directory behind")
    return parser


def _run(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, settings.log.level)
    from cdc.daemon import Daemon

    daemon = Daemon(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    daemon.run(until_caught_up=options.until_caught_up)
    return 0


def _check(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, "warning")
    from cdc.check import check

    return 0 if check(settings, print) else 1


def _status(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    if settings.http.address is None:
        raise ConfigurationError("http.listen is empty: this daemon shows no status", "Give it an address and restart it.")
    host, port = settings.http.address
    url = f"http://{host}:{port}/status"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            status: dict[str, Any] = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"no daemon answers at {host}:{port}: {error}", "Start it with `tarantool-cdc run`, or correct http.listen."
        ) from error
    print(json.dumps(status, indent=1) if options.json else _readable(status))
    return 0


def _readable(status: dict[str, Any]) -> str:
    upstream, position, kafka = status["upstream"], status["position"], status["kafka"]
    lines = [
        ("state", status["state"] + (f" ({status['error']})" if status["error"] else "")),
        ("upstream", f"{upstream['address']}, {upstream['version']}, uuid {upstream['uuid']}, idle {upstream['idle_seconds']} s"),
        ("replica set", upstream["replicaset_uuid"]),
        ("checkpoint", f"{position['checkpoint']} of received {position['received']}"),
        ("seq", position["seq"]),
        ("lag", f"{status['lag_seconds']} s"),
        ("rows", f"{status['rows']} ({status['snapshot_rows']} of the snapshot)"),
        ("kafka", f"{kafka['events']} events, {kafka['commits']} commits, median {kafka['commit_ms_median']} ms"),
        ("uptime", f"{status['uptime_seconds']} s"),
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in lines)


def _decode(options: argparse.Namespace) -> int:
    from cdc.decode import decode_file

    for line in decode_file(options.file):
        print(line)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from cdc.demo import demo

    return 0 if demo(keep=options.keep) else 1
