"""`tarantool-cdc watch`: shows the changes of a server as they happen, without Kafka and without a configuration file.

    is every named space there? ─▶ Members, Follower, PipelineRunner: the daemon's own ─▶ EventOutput ─▶ stdout, or a file

The command is an anonymous replica for as long as it runs. Events get their images from a state store in a temporary directory,
which a snapshot fills; it is removed at the end. So memory stays bounded, whatever the size of the spaces.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc.commands import Say
from cdc.commands.check_members import read_contents
from cdc.commands.watch_directory import temporary_directory
from cdc.commands.watch_lines import TextLines, glyphs_for, json_lines
from cdc.commands.watch_output import EventOutput, OutputError, Render, open_file
from cdc.config import (
    Config,
    KafkaSection,
    LogSection,
    SnapshotSection,
    SpacesSection,
    StateSection,
)
from cdc.config.formats import FormatSection
from cdc.config.http import HttpSection
from cdc.config.member_uri import parts_of_uri
from cdc.config.source import SourceSection
from cdc.config.tap import TapSection
from cdc.daemon.backoff import jittered
from cdc.daemon.beginning import Beginning, Goal, Observations, RunContext
from cdc.daemon.members import Members
from cdc.daemon.row_path import tune_garbage_collector
from cdc.daemon.start import known_before
from cdc.errors import (
    CdcError,
    ConfigurationError,
    ForeignServerError,
    PositionError,
    PublishAborted,
    Remedy,
    SnapshotNeededError,
    printable,
)
from cdc.events.topics import SpaceNames
from cdc.ops.request_queue import RequestQueue
from cdc.ops.status import Status
from cdc.protocol.failure import XlogGapError
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX
from cdc.schema.forms import SpaceForm
from cdc.sources.handshake import greet, vote
from cdc.store.writer import StateWriter
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.identity import instance_uuid

NAME: Final = "watch"
"""`source.name` in the events."""
_ACK_MS: Final = 250
"""Interval of ACKs, and the time within which a stop is noticed, in milliseconds."""
_NAMES_SHOWN: Final = 12
_PASSWORD_VARIABLE: Final = "TARANTOOL_CDC__SOURCE__PASSWORD"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What the user asks for.

    - `spaces`: names of the spaces to watch; empty: all.
    - `has_snapshot`: the rows that are there are shown first.
    - `has_images`: events have the rows before and after. Otherwise no rows are read before the first change.
    - `until_caught_up`: stop once everything is shown that the server had at the beginning.
    - `style`: "auto" is text on a terminal, JSON elsewhere.
    - `output`: file that JSON lines are appended to, in the place of stdout.
    """

    uri: str
    spaces: Sequence[str] = ()
    has_snapshot: bool = False
    has_images: bool = True
    until_caught_up: bool = False
    style: str = "auto"
    output: Path | None = None

    @property
    def is_text(self) -> bool:
        """Whether lines are for people."""
        return self.style == "text" or (self.style == "auto" and self.output is None and _is_terminal(sys.stdout))


def watch(options: WatchOptions, set_stop: Callable[[Callable[[], None]], None], complain: Say) -> None:
    """Show changes until a stop is requested, or the reader ends. Raises the error that ends it.

    `set_stop` is given the function that requests a stop, and `complain` sentences for stderr.
    """
    is_stopping = threading.Event()
    set_stop(is_stopping.set)
    with temporary_directory() as directory, _destination(options) as descriptor:
        config = _config(options, directory)
        with _in_terms_of_the_command():
            names, server = _look(config, options, complain)
            if options.is_text or _is_terminal(sys.stderr):
                complain(_heading(options, names, server))
            _Watch(config, options, _render(options, names, descriptor), descriptor, is_stopping, complain).run()


class _Watch:
    """The connections of one run, one after the other."""

    def __init__(
        self,
        config: Config,
        options: WatchOptions,
        render: Render,
        descriptor: int,
        is_stopping: threading.Event,
        complain: Say,
    ) -> None:
        self._config = config
        self._options = options
        self._is_stopping = is_stopping
        self._status = Status(config.name)
        self._complain = complain
        self._output = EventOutput(descriptor, render, is_stopping, on_turn=self._tell_recovery, tell=self._tell)
        # On a terminal, a bar would be mixed up with the lines for the rows.
        has_bar = not (options.has_snapshot and _is_terminal(sys.stdout))
        context = RunContext(config, self._status, is_stopping, new_names=SpaceNames, has_progress_bar=has_bar)
        self._source = Members(context, RequestQueue())
        self._checkpoint = Checkpoint()
        self._goal = Goal(options.until_caught_up)
        self._observations = Observations()
        self._writer: StateWriter | None = None
        # The reason for a snapshot that makes up for changes that the stream can't bring.
        self._forced: str | None = None
        # Whether a lost connection has been reported, and no stream has begun since.
        self._is_waiting = False

    def run(self) -> None:
        """Show changes until a stop is requested. Raises errors that no retry can cure."""
        tune_garbage_collector()
        if self._options.has_images:
            self._writer = StateWriter(self._config.state.path / "images", self._config.name, 0.5)
        self._source.start()
        try:
            while not self._is_stopping.is_set():
                try:
                    if self._follow():
                        return
                except CdcError as error:
                    self._recover(error)
        finally:
            self._source.close()
            if self._writer is not None:
                self._writer.close()

    def _follow(self) -> bool:
        """Follow the server over one connection. Return whether the goal was reached."""
        known = known_before(self._config, self._checkpoint, self._writer, forced=self._forced)
        beginning = Beginning(known, self._checkpoint, self._output, self._writer, self._goal, self._observations)
        with self._source.opened(beginning) as stream:
            self._forced = None
            try:
                return stream.run()
            except (PublishAborted, OutputError):
                raise  # what was submitted will never be written
            except CdcError:
                stream.collect_submitted()
                raise

    def _recover(self, error: CdcError) -> None:
        """Prepare another connection after an error, or raise the error again if that can't help."""
        match error:
            case PublishAborted() if self._is_stopping.is_set():
                pass
            case PublishAborted():
                self._tell(f"{error.message}: its changes are shown again from its beginning")
            case ForeignServerError():
                raise error
            case XlogGapError() | SnapshotNeededError() | PositionError() if self._options.has_images:
                self._tell(f"{error.message}. Reading all rows again: what has changed meanwhile is shown, each row once")
                self._forced = error.message
            case XlogGapError() | SnapshotNeededError() | PositionError():
                self._tell(f"{error.message}. Changes up to now are missing; beginning again with those from now on")
                self._checkpoint = Checkpoint()
            case _ if error.remedy is Remedy.WAIT:
                delay = jittered(self._source.next_delay())
                self._tell(f"{str(error).rstrip('.')}. Trying again in {delay:.1f} s")
                self._is_waiting = True
                self._is_stopping.wait(delay)
                self._source.delay_elapsed()
            case _:
                raise error

    def _tell_recovery(self) -> None:
        """Report that changes flow again, once they do."""
        if self._is_waiting and self._status.state == "streaming":
            self._is_waiting = False
            self._tell(f"following {self._status.upstream} again from {self._status.published}: no change is missing")

    def _tell(self, sentence: str) -> None:
        self._complain(f"tarantool-cdc: {_in_terms(sentence)}")


def _config(options: WatchOptions, directory: Path) -> Config:
    """Return the configuration of the parts of the daemon. Raises ConfigurationError if the URI can't be used.

    Nothing of it is read from a file, and from the environment only the password.
    """
    try:
        parts_of_uri(options.uri)
    except ValueError as error:
        problem = str(error)
    else:
        problem = ""
    if problem:  # raised outside the handler, whose error may contain the password
        raise ConfigurationError(f"the server to watch {problem}")
    images = "full" if options.has_images else "none"
    # Without images, a gap is reported rather than bridged by all rows of all spaces.
    policy = "resnapshot" if options.has_images else "fail"
    source: dict[str, Any] = {
        "uris": [options.uri],
        "password": os.environ.get(_PASSWORD_VARIABLE),
        "on_gap": policy,
        "on_divergence": policy,
        "survey_interval_ms": 0,
        "ack_interval_ms": _ACK_MS,
    }
    return Config.model_construct(
        # A server takes two replicas with the same UUID for one, and the UUID is made of the name.
        name=f"{NAME}-{uuid.uuid4()}",
        source=SourceSection.model_validate(source),
        snapshot=SnapshotSection(mode="initial" if options.has_snapshot else "never"),
        spaces=SpacesSection(include=[re.escape(name) for name in options.spaces] or [".*"]),
        state=StateSection.model_validate({"path": directory, "images": images}),
        kafka=KafkaSection(bootstrap_servers="", topic_prefix=NAME, tombstones=False, transaction_topic="none"),
        format=FormatSection(on_error="dlq", on_image_error="dlq"),
        http=HttpSection(listen=""),
        tap=TapSection(),
        log=LogSection(),
    )


def _look(config: Config, options: WatchOptions, complain: Say) -> tuple[list[str], str]:
    """Return the names of the spaces to watch, and the server's address and version.

    Raises ConfigurationError if a named space isn't there, and the errors of a server that can't be watched.
    """
    (member,) = config.source.members()
    connection = greet(member, instance_uuid(config.name), frame_bytes_max=config.source.frame_bytes_max)
    try:
        vote(connection)
        version = connection.session.greeting.version_text
        forms = read_contents(connection, complain).schema.forms()
    finally:
        connection.close()
    return _watched(
        options.spaces, {form.name: form for form in forms}, member.address
    ), f"{member.address} (Tarantool {version})"


def _heading(options: WatchOptions, names: list[str], server: str) -> str:
    """Return a sentence about what is watched."""
    if len(names) > _NAMES_SHOWN:
        names = [*names[:_NAMES_SHOWN], f"{len(names) - _NAMES_SHOWN} more"]
    first = "the rows that are there, and then " if options.has_snapshot else ""
    shown = printable(", ".join(names)) or "all spaces (there is none yet)"
    return f"watching {shown} at {server}: {first}changes from now on. Ctrl-C ends."


def _watched(wanted: Sequence[str], forms: Mapping[str, SpaceForm], address: str) -> list[str]:
    """Return the names of the spaces to watch. Raises ConfigurationError for a name that no space has, or none with changes."""
    watchable = sorted(name for name, form in forms.items() if form.is_replicated and form.space_id > SYSTEM_SPACE_MAX)
    missing = [name for name in wanted if name not in forms]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        there = f"The spaces there are: {printable(', '.join(watchable))}." if watchable else "It has no spaces of users."
        raise ConfigurationError(f"{address} has no space{plural} {', '.join(map(repr, missing))}", there)
    local = [name for name in wanted if not forms[name].is_replicated]
    if local:
        raise ConfigurationError(
            f"the changes of {', '.join(map(repr, local))} can't be watched: a local or temporary space isn't replicated"
        )
    return list(wanted) or watchable


def _render(options: WatchOptions, names: Sequence[str], descriptor: int) -> Render:
    if not options.is_text:
        return lambda batch: json_lines(batch.each())
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_terminal = os.isatty(descriptor)
    has_colour = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = _width if is_terminal else lambda: None
    lines = TextLines(glyphs_for(encoding), has_colour=has_colour, width=width, spaces=names)

    def render(batch: Batch) -> bytes:
        return lines(batch.each(), is_whole=batch.is_boundary).encode(encoding, "backslashreplace")

    return render


@contextlib.contextmanager
def _in_terms_of_the_command() -> Iterator[None]:
    """Have errors name the command's URI rather than the key of a configuration that isn't there."""
    try:
        yield
    except CdcError as error:
        error.message, error.hint = _in_terms(error.message), _in_terms(error.hint)
        raise


def _in_terms(text: str) -> str:
    return text.replace("source.uris", "the URI").replace("source.password_file", f"the variable {_PASSWORD_VARIABLE}")


def _width() -> int | None:
    return shutil.get_terminal_size().columns


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except ValueError:  # closed
        return False


@contextlib.contextmanager
def _destination(options: WatchOptions) -> Iterator[int]:
    """Yield the descriptor to write to. Raises ConfigurationError if the file can't be opened."""
    if options.output is None:
        yield sys.stdout.fileno()
        return
    descriptor = open_file(options.output)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
