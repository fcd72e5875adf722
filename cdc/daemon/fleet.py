"""The process of a fleet: it runs a daemon for each shard, as a process of its own, and serves one status for all.

    signals, ends of processes, what daemons tell ─▶ a queue ─▶ FleetProcesses decides ─▶ start, kill, or ask to stop

A process per shard uses a core per shard, and a shard that is out of memory, say, leaves the others alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from cdc.config.fleet import Fleet
from cdc.daemon.fleet_processes import LOOK_SECONDS, Failure, FleetProcesses, Measure, Phase, ShardProcess
from cdc.daemon.http_settings import certificate_of, tokens_of
from cdc.daemon.supervised import failure_in
from cdc.errors import CdcError, ConfigurationError
from cdc.ops import asking
from cdc.ops.bounded_server import BoundedServer
from cdc.ops.fleet_page import ShardView, fleet_server
from cdc.ops.rights import Rights
from cdc.ops.service_manager import ServiceManager, without_service_manager
from cdc.ops.silence import SILENT_SECONDS, Silence, silence_of

_Event = Callable[[], None]
Command = Callable[[str, int], Sequence[str]]
"""The command that runs a shard's daemon, given the shard's name and the descriptor for cdc.daemon.supervised."""


class FleetError(CdcError):
    """The fleet ends because of one of its daemons."""


class FleetDaemon:
    """A run of a fleet, from its start to its stop."""

    def __init__(self, fleet: Fleet, command: Command, first_options: Sequence[str] = ()) -> None:
        """`first_options` are added to the command of each shard's first process only.

        Open http.listen. Raises ConfigurationError if that fails, NameTakenError if the fleet runs already.
        """
        self._fleet = fleet
        self._command = command
        self._first_options = first_options
        self._log = structlog.get_logger().bind(name=fleet.name)
        self._processes = FleetProcesses(fleet.shards, watchdog_seconds=fleet.watchdog_seconds)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        # Ports at which the running daemons serve their status.
        self._ports: dict[str, int | None] = {}
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._server = self._listen()
        self._service = ServiceManager()

    @property
    def http_port(self) -> int | None:
        """Port of /metrics and /status, or None if they aren't served."""
        return self._server.port if self._server else None

    def stop(self) -> None:
        """Request a clean stop of all daemons. For any thread."""
        self._events.put(lambda: self._stop("stopping"))

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to all daemons. For any thread."""
        self._events.put(lambda: self._signal(number))

    def run(self, *, until_caught_up: bool = False) -> None:
        """Run the daemons until stopped, or until all have caught up. Raises errors that need an operator."""
        processes = self._processes = FleetProcesses(
            self._fleet.shards, until_caught_up=until_caught_up, watchdog_seconds=self._fleet.watchdog_seconds
        )
        self._log.info("the fleet starts", shards=list(self._fleet.shards), topics=self._fleet.topics)
        looked_at = time.monotonic()
        self._service.tell_started()
        try:
            while not processes.is_over():
                for name in processes.due(time.monotonic()):
                    self._start(name)
                self._service.tell_well()
                self._await_events(looked_at + LOOK_SECONDS)
                if (now := time.monotonic()) >= looked_at + LOOK_SECONDS:
                    looked_at = now
                    self._look(now)
        finally:
            if self._server is not None:
                self._server.stop()
        for name, sentence in processes.problems():
            raise FleetError(f"the fleet {self._fleet.name!r} ends because of its shard {name!r}: {sentence}")
        self._log.info("the fleet has stopped")

    # Processes.

    def _await_events(self, until: float) -> None:
        """Handle what comes until then, or until a process is due."""
        due = self._processes.wait_seconds(time.monotonic())
        seconds = max(0.0, until - time.monotonic())
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=seconds if due is None else min(seconds, due))()

    def _look(self, now: float) -> None:
        """Tell of daemons that are silent, or end them."""
        for name, what in self._processes.look(now):
            child, view = self._children.get(name), self.views()[name]
            if child is None or view.silence is None:  # it has gone on this moment
                continue
            if what is Measure.TELL:
                self._log.warning("the daemon of a shard doesn't answer", shard=name, reason=view.silence.sentence)
                if self._processes.shards[name].has_told:  # before that, the signal would end it
                    child.send_signal(signal.SIGUSR2)
            else:
                self._log.error("the daemon of a shard is killed", shard=name, reason=view.silence.sentence)
                child.kill()

    def _start(self, name: str) -> None:
        options = self._first_options if not self._processes.shards[name].starts else ()
        try:
            child, ours = self._process(name, options)
        except OSError as error:
            self._processes.started(name, time.monotonic())
            self._ended(name, 1, Failure(f"its process can't be started: {error.strerror}"))
            return
        self._children[name] = child
        self._processes.started(name, time.monotonic())
        self._log.info("the daemon of a shard is started", shard=name, process=child.pid)
        threading.Thread(target=self._watch, args=(name, child, ours), name=f"shard-{name}", daemon=True).start()

    def _process(self, name: str, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a shard's process, and return it with this end of the sockets between the two. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            command = [*self._command(name, theirs.fileno()), *options]
            environment = without_service_manager(os.environ)
            try:
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environment), ours
            except OSError:
                ours.close()
                raise

    def _watch(self, name: str, child: subprocess.Popen[bytes], ours: socket.socket) -> None:
        """Pass on what a daemon tells, and its end. The function of a thread of its own."""
        failure: Failure | None = None
        with ours, ours.makefile("r", encoding="utf-8") as lines:
            with contextlib.suppress(OSError, ValueError):  # it was killed while it wrote
                for line in lines:
                    message: dict[str, Any] = json.loads(line)
                    failure = failure_in(message) or failure
                    if "port" in message:
                        port = message["port"]
                        self._events.put(lambda port=port: self._ports.__setitem__(name, port))  # type: ignore[misc]
                    if "lifelessness" in message:
                        why = message["lifelessness"]
                        self._events.put(lambda why=why: self._heard(name, child, why))  # type: ignore[misc]
                    for needed in message.get("waits_for", ()):
                        self._events.put(lambda needed=needed: self._processes.need(needed, time.monotonic()))  # type: ignore[misc]
            status = child.wait()
        self._events.put(lambda: self._ended(name, status, failure))

    def _heard(self, name: str, child: subprocess.Popen[bytes], lifelessness: str | None) -> None:
        if self._children.get(name) is child:
            self._processes.heard(name, lifelessness)

    def _ended(self, name: str, status: int, failure: Failure | None) -> None:
        self._children.pop(name, None)
        self._ports.pop(name, None)
        was_stopping = self._processes.is_stopping
        delay = self._processes.ended(name, status, failure, time.monotonic())
        error = self._processes.shards[name].error
        if delay is not None:
            self._log.warning("the daemon of a shard has ended", shard=name, reason=error, restart_seconds=round(delay, 2))
        else:
            self._log.info("the daemon of a shard has ended", shard=name, status=status)
        if self._processes.is_stopping and not was_stopping:
            self._stop(f"stopping, because of the shard {name!r}")

    def _stop(self, why: str) -> None:
        self._log.info(why, shards=self._processes.running)
        self._processes.stop()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    # Status.

    def _listen(self) -> BoundedServer | None:
        http = self._fleet.shared.http
        address = http.address
        if address is None:
            return None
        try:
            rights, tls = Rights.of(tokens_of(self._fleet.shared)), certificate_of(http)
            return fleet_server(address, self._fleet.name, self._fleet.topics, self.views, http.allowed_hosts, rights, tls)
        except ConfigurationError as error:
            raise asking.listener_conflict_error(self._fleet.name, address, "") or error from error

    def views(self) -> dict[str, ShardView]:
        """Return what is known of each shard's process. Safe in any thread."""
        found = {}
        for name, shard in list(self._processes.shards.items()):
            child = self._children.get(name)
            is_running = shard.phase is Phase.RUNNING
            found[name] = ShardView(
                shard.phase.value,
                child.pid if child is not None and is_running else None,
                self._ports.get(name),
                shard.restarts,
                shard.error,
                self._silence(shard, child) if is_running else None,
            )
        return found

    def _silence(self, shard: ShardProcess, child: subprocess.Popen[bytes] | None) -> Silence | None:
        """Return what to tell of a daemon that hasn't told for a while that it is well."""
        seconds, limit = shard.silent_seconds, self._processes.watchdog_seconds
        if child is None or seconds < SILENT_SECONDS:
            return None
        what_follows = (
            f"The fleet kills it in {max(0.0, limit - seconds):.0f} s, and starts it again (fleet.watchdog_ms)"
            if limit is not None
            else f"`kill -9 {child.pid}` ends it, and the fleet starts it again (fleet.watchdog_ms = 0: not by itself)"
        )
        return silence_of(child.pid, seconds, shard.lifelessness, what_follows)


def command(config_file: str, *, until_caught_up: bool, standby: bool = False) -> Command:
    """Return the command of a shard's daemon."""
    options: Final = [*(["--until-caught-up"] if until_caught_up else []), *(["--standby"] if standby else [])]

    def of_shard(name: str, descriptor: int) -> Sequence[str]:
        begin = [sys.executable, "-m", "cdc", "run", "--config", config_file]
        return [*begin, "--shard", name, "--supervised", str(descriptor), *options]

    return of_shard
