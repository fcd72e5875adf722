"""The command line: `tarantool-cdc COMMAND`. Exit status: 0 success, 1 error, 2 usage. Errors go to stderr as sentences."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cdc import __version__, config, log
from cdc.config.fleet import Fleet, load, load_daemon
from cdc.errors import CdcError
from cdc.log.output import complain, finish, prepare, say
from cdc.ops import signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    try:
        prepare()
        return _status_of(_parser().parse_args(arguments))
    except KeyboardInterrupt:
        return 130
    finally:
        log.flush()


def _status_of(options: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        status = command(options)
        finish()
        return status
    except CdcError as error:
        if command not in _LOGGING or not log.report_last_error(str(error)):
            complain(f"tarantool-cdc: {error}")
        return 1


class _CommandParser(argparse.ArgumentParser):
    """Parser of one command. If it `is_intermixed`, options may stand between the names of a list, too."""

    is_intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command's arguments."""
        if not self.is_intermixed:
            return super().parse_known_args(args, namespace)
        self.is_intermixed = False  # the next line calls this method for the options, and for the names
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.is_intermixed = True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tarantool-cdc", description="Publishes Tarantool's changes to Kafka, exactly once.")
    parser.add_argument("--version", action="version", version=f"tarantool-cdc {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser)

    def add(name: str, command: Callable[[argparse.Namespace], int], summary: str) -> _CommandParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=command)
        return sub

    def add_configured(name: str, command: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        sub = add(name, command, summary)
        sub.add_argument("--config", type=Path, required=True, metavar="FILE", help="the TOML file to use")
        sub.add_argument("--shard", metavar="NAME", help="of a fleet's file: the shard whose daemon is meant")
        return sub

    def add_orders(sub: argparse.ArgumentParser) -> None:
        for name, meaning in (
            ("--rebuild-state", "continue though the state store or the checkpoint is lost or old: all rows are published again"),
            ("--take-over", "stop another daemon of this name that may be running, by taking its name in Kafka"),
            ("--take-prefix", "take kafka.topic_prefix from a daemon of another name, which is gone for good"),
        ):
            sub.add_argument(name, action="store_true", help=meaning)

    run = add_configured("run", _run, "follow the master and publish its changes; SIGTERM stops it cleanly")
    _add_run_arguments(run)
    add_orders(run)
    add_configured("check", _check, "connect, authenticate, vote, compare positions, list what would be published")
    doctor = add_configured("doctor", _doctor, "say what is wrong or will be, in order of harm, and what to change")
    doctor.add_argument("--json", action="store_true", help="print the advice as JSON")
    doctor.add_argument("--verbose", action="store_true", help="print also what is as it should be")
    status = add_configured("status", _status, "show the running daemon's position, lag and upstream")
    status.add_argument("--json", action="store_true", help="print the complete status as JSON")
    topics = add_configured("topics", _topics, "list the daemon's topics: records, newest seq, and how far consumers are behind")
    topics.add_argument("--json", action="store_true", help="print them as JSON")
    topics.add_argument(
        "--acknowledge", nargs="+", metavar="TOPIC", help="no consumer needs what these deleted topics had: say no more of them"
    )
    _add_position_arguments(add_configured("position", _position, "show the daemon's checkpoint, save it, or put it back"))
    snapshot = add_configured("snapshot", _snapshot, "have the running daemon publish all rows of these spaces again, as `r`")
    _add_snapshot_arguments(snapshot)
    add_configured("verify", _verify, "compare the state store with the master; the daemon must be stopped")
    unregister = add_configured("unregister", _unregister, "give back the id that a registered daemon has; it must be stopped")
    unregister.add_argument("--yes", action="store_true", help="don't ask for confirmation")
    replay = add_configured("replay", _replay, "publish the changes in a server's .snap and .xlog files, to the same checkpoint")
    replay.add_argument("--follow", action="store_true", help="continue with what the server writes; SIGTERM stops it cleanly")
    add_orders(replay)
    replay.add_argument(
        "directories", type=Path, nargs="+", metavar="DIR", help="where the .snap and .xlog files are; if apart, name both"
    )
    tap = add_configured("tap", _tap, "serve the changes to memcached's TAP clients; SIGTERM stops it cleanly")
    tap.add_argument("--to", metavar="HOST:PORT", help="also keep the memcached at this address filled with the changes")
    _add_watch_arguments(add("watch", _watch, "show a server's changes as they happen: no Kafka, no configuration"))
    decode = add("decode", _decode, "print a captured replication stream, a .snap or an .xlog as JSON lines")
    decode.add_argument("file", type=Path, metavar="FILE", help="one side of a connection, a .snap or an .xlog, plain or gzip")
    demo = add("demo", _demo, "start real servers with a workload, and watch the changes arrive; ends automatically")
    demo.add_argument("--keep", action="store_true", help="keep the demo's directory")
    return parser


def _add_run_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--until-caught-up", action="store_true", help="stop once everything is published that the master had at connection"
    )
    run.add_argument(
        "--standby", action="store_true", help="while another daemon of this name runs, wait, and take over when it is gone"
    )
    run.add_argument("--supervised", type=int, help=argparse.SUPPRESS)  # given by a fleet's process to those that it starts


def _add_position_arguments(position: argparse.ArgumentParser) -> None:
    position.add_argument(
        "action", choices=("show", "export", "set"), nargs="?", default="show", help="show (the default), export or set"
    )
    position.add_argument("file", type=Path, nargs="?", metavar="FILE", help="for export: a new file; for set: an exported one")
    position.add_argument("--json", action="store_true", help="show the position as JSON")
    position.add_argument("--yes", action="store_true", help="don't ask for confirmation")


def _add_snapshot_arguments(snapshot: argparse.ArgumentParser) -> None:
    snapshot.add_argument("spaces", nargs="*", metavar="SPACE", help="a published space's name")
    snapshot.add_argument(
        "--where",
        metavar="EXPRESSION",
        help='only rows for which this CEL expression holds: "row.id > 7"; the daemon needs tarantool-cdc[filter] for it',
    )
    others = snapshot.add_mutually_exclusive_group()
    for action, meaning in (
        ("stop", "end the requests for these spaces, or all requests"),
        ("pause", "publish no rows of requests for now"),
        ("resume", "go on after --pause"),
    ):
        others.add_argument(f"--{action}", dest="action", action="store_const", const=action, help=meaning)


def _add_watch_arguments(watch: _CommandParser) -> None:
    watch.is_intermixed = True
    watch.add_argument("uri", metavar="URI", help="the server: user:password@host:port; without a user: guest")
    watch.add_argument("spaces", nargs="*", default=[], metavar="SPACE", help="names of the spaces to watch; none: all")
    begin = watch.add_mutually_exclusive_group()
    begin.add_argument("--snapshot", action="store_true", help="begin with the rows that are there")
    begin.add_argument("--from-now", action="store_true", help="show only changes from now on (the default)")
    watch.add_argument("--no-images", action="store_true", help="don't read the rows first: updates show their operations only")
    watch.add_argument("--until-caught-up", action="store_true", help="stop once everything is shown that the server has now")
    watch.add_argument(
        "--format", choices=("auto", "text", "json"), default="auto", help="auto: text on a terminal, JSON lines elsewhere"
    )
    watch.add_argument("--output", type=Path, metavar="FILE", help="append to this file, and not to stdout")


def _run(options: argparse.Namespace) -> int:
    fleet = _fleet(options)
    if fleet is not None:
        _log(fleet.shared)
        from cdc.commands.run import run_fleet

        run_fleet(fleet, options.config, until_caught_up=options.until_caught_up, standby=options.standby, **_orders(options))
        return 0
    settings = _load_and_log(options)
    if options.standby:
        settings = settings.model_copy(update={"standby": True})
    from cdc.commands.run import run

    run(settings, until_caught_up=options.until_caught_up, supervised=options.supervised, **_orders(options))
    return 0


def _fleet(options: argparse.Namespace) -> Fleet | None:
    """Return the fleet that a command is about; None if it is about one daemon."""
    found = load(options.config) if options.shard is None else None
    return found if isinstance(found, Fleet) else None


def _daemon(options: argparse.Namespace) -> config.Config:
    """Return the configuration of the daemon that a command is about. Raises ConfigurationError for a fleet without --shard."""
    from cdc.commands.asked import as_it_is_asked

    return as_it_is_asked(load_daemon(options.config, options.shard))


def _load_and_log(options: argparse.Namespace) -> config.Config:
    """Return the configuration; from now on stderr is the log."""
    settings = load_daemon(options.config, options.shard)
    _log(settings)
    return settings


def _log(settings: config.Config) -> None:
    log.configure(settings.log.format, settings.log.level, name=settings.name)
    log.take_stderr()
    signals.prepare()


def _orders(options: argparse.Namespace) -> dict[str, bool]:
    return {name: getattr(options, name) for name in ("rebuild_state", "take_over", "take_prefix")}


def _check(options: argparse.Namespace) -> int:
    fleet = _fleet(options)
    settings = _daemon(options) if fleet is None else fleet.shared
    log.configure(settings.log.format, "warning")
    from cdc.commands.check import check, check_fleet

    return 0 if (check(settings, say) if fleet is None else check_fleet(fleet, say)) else 1


def _doctor(options: argparse.Namespace) -> int:
    fleet = _fleet(options)
    from cdc.commands.asked import as_it_is_asked
    from cdc.commands.doctor import doctor

    daemons = [_daemon(options)] if fleet is None else [as_it_is_asked(each) for each in fleet.shards.values()]
    log.configure(daemons[0].log.format, "warning")
    are_well = [doctor(each, say, file=options.config, as_json=options.json, is_verbose=options.verbose) for each in daemons]
    return 0 if all(are_well) else 1


def _status(options: argparse.Namespace) -> int:
    from cdc.commands.status import fleet_status, status

    fleet = _fleet(options)
    if fleet is not None:
        fleet_status(fleet, say, as_json=options.json)
    else:
        status(_daemon(options), say, as_json=options.json)
    return 0


def _topics(options: argparse.Namespace) -> int:
    from cdc.commands.topics import acknowledge, topics

    if options.acknowledge:
        acknowledge(_daemon(options), options.acknowledge, say)
        return 0
    topics(_daemon(options), say, as_json=options.json)
    return 0


def _position(options: argparse.Namespace) -> int:
    from cdc.commands.position import export, put_back, show

    settings = _daemon(options)
    log.configure(settings.log.format, "warning")
    if (options.file is None) != (options.action == "show"):
        complain(f"tarantool-cdc: position {options.action} {'takes no' if options.action == 'show' else 'needs a'} FILE")
        return 2
    if options.action == "show":
        show(settings, say, as_json=options.json)
        return 0
    if options.action == "export":
        export(settings, say, options.file)
        return 0
    confirm = _Confirmation(is_given=options.yes)
    if put_back(settings, say, options.file, confirm):
        return 0
    return 2 if confirm.lacks_terminal else 1


class _Confirmation:
    """Question on the terminal, unless the answer `is_given`."""

    def __init__(self, *, is_given: bool) -> None:
        self._is_given = is_given
        self.lacks_terminal = False

    def __call__(self, question: str) -> bool:
        if self._is_given:
            return True
        if not sys.stdin.isatty():
            self.lacks_terminal = True
            complain("tarantool-cdc: there is no terminal to ask for confirmation. Pass --yes.")
            return False
        try:
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False


def _snapshot(options: argparse.Namespace) -> int:
    from cdc.commands.snapshot import snapshot

    action = options.action or "execute"
    snapshot(_daemon(options), action, options.spaces, say, where=options.where)
    return 0


def _verify(options: argparse.Namespace) -> int:
    settings = _daemon(options)
    log.configure(settings.log.format, "warning")
    from cdc.commands.verify import verify

    result = verify(settings, say)
    complain(result.sentence)
    return 0 if result.is_equal else 1


def _unregister(options: argparse.Namespace) -> int:
    settings = _daemon(options)
    log.configure(settings.log.format, "warning")
    from cdc.commands.unregister import unregister

    confirm = _Confirmation(is_given=options.yes)
    if unregister(settings, say, confirm):
        return 0
    return 2 if confirm.lacks_terminal else 1


def _replay(options: argparse.Namespace) -> int:
    settings = _load_and_log(options)
    from cdc.commands.run import replay

    replay(settings, options.directories, follows=options.follow, **_orders(options))
    return 0


def _tap(options: argparse.Namespace) -> int:
    settings = _load_and_log(options)
    from cdc.feeds.tap.command import tap

    tap(settings, options.to)
    return 0


def _watch(options: argparse.Namespace) -> int:
    log.configure("sentence", "warning")

    def set_stop(stop: Callable[[], None]) -> None:
        signals.heed(signals.handlers(stop))

    with contextlib.suppress(KeyboardInterrupt):
        from cdc.commands.watch import WatchOptions, watch

        given = WatchOptions(
            options.uri,
            tuple(options.spaces),
            has_snapshot=options.snapshot,
            has_images=not options.no_images,
            until_caught_up=options.until_caught_up,
            style=options.format,
            output=options.output,
        )
        watch(given, set_stop, complain)
    return 0


def _decode(options: argparse.Namespace) -> int:
    from cdc.commands.decode import decode_file

    for line in decode_file(options.file):
        if not say(line):
            break
    return 0


_LOGGING: Final = frozenset({_run, _replay, _tap})
"""Commands whose stderr is a log, up to its last line."""


def _demo(options: argparse.Namespace) -> int:
    if find_spec("cdc.local") is None:
        raise CdcError("The demo's servers aren't part of an installed package: run `make demo` in a checkout of the sources.")
    from cdc.local.demo import demo

    return 0 if demo(keep=options.keep) else 1
