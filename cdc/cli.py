"""The command line: `tarantool-cdc COMMAND`. Exit status 0 well, 1 error, 2 usage; errors go to stderr as sentences."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc import __version__, config, log
from cdc.errors import CdcError, ConfigurationError
from cdc.vclock import VClock

if TYPE_CHECKING:
    from cdc.daemon.admission import Orders


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except CdcError as error:
        if command in _LOGGING and log.is_json():
            structlog.get_logger().error(str(error))
        else:
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

    def add_orders(sub: argparse.ArgumentParser) -> None:
        for name, meaning in (
            ("--rebuild-state", "build the state store anew if there is none, though the checkpoint was written with one"),
            ("--take-over", "end another daemon of this name that may be at work, by taking its name in Kafka"),
            ("--take-prefix", "take kafka.topic_prefix from a daemon of another name, which is gone for good"),
        ):
            sub.add_argument(name, action="store_true", help=meaning)

    run = add_configured("run", _run, "follow the master and publish its changes; SIGTERM stops it cleanly")
    run.add_argument(
        "--until-caught-up", action="store_true", help="stop once all is published that the master had when it was reached"
    )
    add_orders(run)
    add_configured("check", _check, "connect, authenticate, vote, compare positions, list what would be published")
    status = add_configured("status", _status, "show the running daemon's position, lag, upstream and throughput")
    status.add_argument("--json", action="store_true", help="all of it, as the daemon gives it")
    snapshot = add_configured("snapshot", _snapshot, "have the running daemon publish all rows of these spaces again, as `r`")
    snapshot.add_argument("spaces", nargs="+", metavar="SPACE", help="a published space's name")
    add_configured("verify", _verify, "compare the state store with the master; the daemon must be stopped")
    unregister = add_configured("unregister", _unregister, "give back the id that a registered daemon has; it must be stopped")
    unregister.add_argument("--yes", action="store_true", help="don't ask for confirmation")
    replay = add_configured("replay", _replay, "publish the changes in a server's .snap and .xlog files, to the same checkpoint")
    replay.add_argument("--follow", action="store_true", help="go on with what the server writes; SIGTERM stops it cleanly")
    add_orders(replay)
    replay.add_argument("directory", type=Path, metavar="DIR", help="where the .snap and .xlog files are")
    decode = add("decode", _decode, "print a captured replication stream, a .snap or an .xlog as JSON lines")
    decode.add_argument("file", type=Path, metavar="FILE", help="one side of a connection, a .snap or an .xlog, plain or gzip")
    demo = add("demo", _demo, "start real servers with a workload, and watch the changes arrive; ends by itself")
    demo.add_argument("--keep", action="store_true", help="leave the demo's directory behind")
    return parser


def _orders(options: argparse.Namespace) -> Orders:
    from cdc.daemon.admission import Orders

    return Orders(rebuild_state=options.rebuild_state, take_over=options.take_over, take_prefix=options.take_prefix)


def _run(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, settings.log.level)
    from cdc.daemon.supervisor import Daemon

    daemon = Daemon(settings, _orders(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    daemon.run(until_caught_up=options.until_caught_up)
    return 0


def _check(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, "warning")
    from cdc.commands.check import check

    return 0 if check(settings, print) else 1


def _status(options: argparse.Namespace) -> int:
    from cdc.ops.asking import ask

    status = ask(config.load(options.config), "/status")
    print(json.dumps(status, indent=1) if options.json else readable(status))
    return 0


def _snapshot(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    if settings.state.images == "none":
        raise ConfigurationError(
            'state.images is "none": the daemon keeps no rows that it could publish again',
            'Set it to "full", or restart the daemon with snapshot.mode = "always".',
        )
    from cdc.ops.asking import ask

    ask(settings, "/snapshot", {"spaces": options.spaces})
    print(f"the daemon publishes all rows of {', '.join(options.spaces)}; `tarantool-cdc status` tells how far it is")
    return 0


def _verify(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, "warning")
    from cdc.commands.verify import verify

    result = verify(settings, print)
    print(result.sentence, file=sys.stderr)
    return 0 if result.is_equal else 1


def _unregister(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, "warning")
    from cdc.commands.unregister import unregister

    lacks_terminal = False

    def confirm(question: str) -> bool:
        nonlocal lacks_terminal
        if options.yes:
            return True
        if not sys.stdin.isatty():
            lacks_terminal = True
            print("tarantool-cdc: there is no terminal to ask for confirmation. Say --yes.", file=sys.stderr)
            return False
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    if unregister(settings, print, confirm):
        return 0
    return 2 if lacks_terminal else 1


def readable(status: dict[str, Any]) -> str:
    """/status for people."""
    upstream, position, kafka = status["upstream"], status["position"], status["kafka"]
    commits = f"{kafka['commits']} commits"
    if kafka["commit_ms_median"] is not None:
        commits += f", a commit took {kafka['commit_ms_median']} ms (median of the last), {kafka['commit_ms_max']} ms at most"
    lines = [
        ("state", status["state"] + (f" ({status['error']})" if status["error"] else "")),
        ("upstream", f"{upstream['address']}, {upstream['version']}, uuid {upstream['uuid']}, idle {upstream['idle_seconds']} s"),
        ("replica set", upstream["replicaset_uuid"]),
        ("checkpoint", f"{_vclock(position['checkpoint'])} of received {_vclock(position['received'])}"),
        ("seq", position["seq"]),
        ("lag", f"{status['lag_seconds']} s"),
        (
            "rows",
            f"{status['rows']} received, those of system and excluded spaces too; the last snapshot published "
            f"{status['snapshot_rows']}",
        ),
        ("kafka", f"{kafka['events']} events, {commits}"),
        ("uptime", f"{status['uptime_seconds']} s"),
    ]
    store, request = status["store"], status["snapshot_request"]
    if store is not None:
        lines.insert(-2, ("store", f"{store['rows']} rows, {store['bytes']} bytes, at {_vclock(store['position'])}"))
    if request is not None:
        wanted = ", ".join(request["spaces"]) or "nothing yet"
        lines.insert(-2, ("snapshot of", f"{wanted}: {request['rows']} rows so far, {request['waiting']} requests waiting"))
    lines += [("member", _member_line(member)) for member in status["upstreams"]]
    return "\n".join(f"{name:<12} {value}" for name, value in lines)


def _vclock(components: dict[str, int]) -> str:
    """As everywhere else: {1: 56}."""
    return str(VClock.from_json(components))


def _member_line(member: dict[str, Any]) -> str:
    parts = [f"{member['address']} {member['state']}"]
    if member["vclock"] is not None:
        age = f" {member['age_seconds']:.0f} s ago" if member["age_seconds"] is not None else ""
        parts.append(f"{member['version']}, {'read-only' if member['read_only'] else 'writable'}, uuid {member['uuid']}")
        parts.append(f"{age.strip()} at {_vclock(member['vclock'])}, {member['lag_rows']} rows behind the first".strip())
        if not member["gc_vclock"]:
            parts.append("all logs are kept")
        else:
            parts.append(f"logs from {_vclock(member['gc_vclock'])}")
            headroom = member["headroom_rows"]
            if headroom is not None:
                parts.append(
                    f"{headroom} rows before the daemon's position are kept" if headroom >= 0 else f"a gap of {-headroom} rows"
                )
    if member["error"]:
        parts.append(member["error"])
    return "; ".join(parts)


def _replay(options: argparse.Namespace) -> int:
    settings = config.load(options.config)
    log.configure(settings.log.format, settings.log.level)
    from cdc.daemon.file_source import Replay

    replay = Replay(settings, options.directory, follows=options.follow, orders=_orders(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: replay.stop())
    replay.run()
    return 0


def _decode(options: argparse.Namespace) -> int:
    from cdc.commands.decode import decode_file

    for line in decode_file(options.file):
        print(line)
    return 0


_LOGGING: Final = frozenset({_run, _replay})
"""Commands whose stderr is a log, to its last line."""


def _demo(options: argparse.Namespace) -> int:
    from cdc.commands.demo import demo

    return 0 if demo(keep=options.keep) else 1
