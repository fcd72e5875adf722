"""What `watch` decides before it connects, and what it does about errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc import cli
from cdc.commands import watch as module
from cdc.commands.watch import WatchOptions, watch
from cdc.commands.watch_output import OutputError
from cdc.daemon.beginning import Beginning, RunContext
from cdc.errors import (
    CdcError,
    ConfigurationError,
    ConnectionLostError,
    ForeignServerError,
    PositionError,
    ProtocolError,
    PublishAborted,
    SnapshotNeededError,
)
from cdc.log.output import complain
from cdc.ops.request_queue import RequestQueue
from cdc.protocol.failure import XlogGapError
from cdc.schema.forms import SpaceForm
from tests.daemon.test_rounds import Scripted

URI = "cdc:secret@db:3301"
GAP = XlogGapError("logs are gone")


def form(space_id: int, name: str, *, is_replicated: bool = True) -> SpaceForm:
    return SpaceForm(space_id, name, (), (), is_replicated=is_replicated)


FORMS = {
    each.name: each
    for each in (form(512, "users"), form(513, "orders"), form(514, "tmp", is_replicated=False), form(280, "_space"))
}


def test_all_spaces_of_users_are_watched_by_default() -> None:
    assert module._watched((), FORMS, "db:3301") == ["orders", "users"]
    assert module._watched(("users",), FORMS, "db:3301") == ["users"]
    assert module._watched(("_space",), FORMS, "db:3301") == ["_space"]


@pytest.mark.parametrize(
    ("wanted", "forms", "words"),
    [
        (("usres",), FORMS, "db:3301 has no space 'usres'. The spaces there are: orders, users."),
        (("a", "users", "b"), FORMS, "db:3301 has no spaces 'a', 'b'. The spaces there are: orders, users."),
        (("a",), {}, "db:3301 has no space 'a'. It has no spaces of users."),
        (("tmp",), FORMS, "the changes of 'tmp' can't be watched: a local or temporary space isn't replicated"),
    ],
)
def test_unknown_spaces_are_refused(wanted: tuple[str, ...], forms: dict[str, SpaceForm], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        module._watched(wanted, forms, "db:3301")
    assert str(error.value) == words


def test_the_configuration_has_nothing_of_the_daemons_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TARANTOOL_CDC__KAFKA__TOPIC_PREFIX", "other")
    monkeypatch.setenv("TARANTOOL_CDC__SPACES__INCLUDE", '["other"]')
    monkeypatch.setenv("TARANTOOL_CDC__SOURCE__PASSWORD", "from the environment")
    config = module._config(WatchOptions("cdc@db:3301", ("a.b",)), tmp_path)
    assert (config.kafka.topic_prefix, list(config.spaces.include)) == ("watch", [r"a\.b"])
    (member,) = config.source.members()
    assert member.password is not None
    assert member.password.get_secret_value() == "from the environment"
    again = module._config(WatchOptions(URI), tmp_path)
    assert again.name != config.name, "two of them at one server would have the same UUID"
    assert again.source.members()[0].password.get_secret_value() == "secret"  # type: ignore[union-attr]


@pytest.mark.parametrize("uri", ["cdc:hunter2@db", "hunter2", "cdc:hunter2@db:0", "cdc:%ffhunter2@db:1"])
def test_a_uri_that_cannot_be_read_is_not_shown(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the server to watch is a URI") as error:
        module._config(WatchOptions(uri), tmp_path)
    assert "hunter2" not in str(error.value)
    assert error.value.__context__ is None


def test_options_may_stand_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[WatchOptions] = []
    monkeypatch.setattr(module, "watch", lambda options, *_: given.append(options))
    monkeypatch.setattr("cdc.cli.log.configure", lambda *_: None)
    for arguments in (
        ["--snapshot", URI, "users", "orders", "--no-images"],
        [URI, "--snapshot", "users", "--no-images", "orders"],
        [URI, "users", "orders", "--no-images", "--snapshot"],
    ):
        assert cli.main(["watch", *arguments]) == 0
    assert given == [WatchOptions(URI, ("users", "orders"), has_snapshot=True, has_images=False)] * 3


def test_both_beginnings_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["watch", URI, "--snapshot", "--from-now"])
    assert "not allowed with" in capsys.readouterr().err


# Errors of its connections.

Play = Callable[[Beginning], bool]


def raises(error: CdcError) -> Play:
    def play(_: Beginning) -> bool:
        raise error

    return play


def ends(_: Beginning) -> bool:
    return True


class Streams:
    """What `watch` follows in a test: connections that do one after the other what they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = Scripted()
        self.stop: Callable[[], None] = lambda: None
        monkeypatch.setattr(module, "_look", lambda *_: (["users"], "db:3301 (Tarantool 2.6.0)"))
        monkeypatch.setattr(module, "Members", self._opened)
        monkeypatch.setattr(module, "_destination", _nowhere)

    def _opened(self, context: RunContext, _: RequestQueue) -> Scripted:
        self.context = context
        return self.source

    def run(self, *plays: Play, **options: Any) -> list[Beginning]:
        """Watch through these streams; returns with what each began."""
        self.source.plays[:] = plays

        def set_stop(stop: Callable[[], None]) -> None:
            self.stop = stop

        watch(WatchOptions(URI, **options), set_stop, complain)
        return self.source.beginnings


@contextmanager
def _nowhere(_: WatchOptions) -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


def test_a_lost_connection_is_reported_and_opened_again(streams: Streams, capfd: pytest.CaptureFixture[str]) -> None:
    def streams_again(_: Beginning) -> bool:
        streams.context.status.state, streams.context.status.upstream = "streaming", "db:3301"
        assert beginnings[-1].publisher.has_room
        assert beginnings[-1].publisher.has_room
        return True

    beginnings = streams.source.beginnings
    streams.run(raises(ConnectionLostError("the connection to db:3301 broke", "Look at source.uris.")), streams_again)
    errors = capfd.readouterr().err
    assert "tarantool-cdc: the connection to db:3301 broke. Look at the URI. Trying again in 0.0 s\n" in errors
    assert errors.count("following db:3301 again") == 1


def test_errors_that_no_retry_cures_end_it(streams: Streams) -> None:
    for error in (ProtocolError("it is odd"), ForeignServerError("it is another replica set")):
        with pytest.raises(CdcError) as caught:
            streams.run(raises(error))
        assert caught.value is error


def test_an_output_that_cannot_be_written_ends_it_at_once(streams: Streams) -> None:
    """What was submitted will never be there, so nothing waits for it."""
    waited: list[Beginning] = []
    streams.source.settle = waited.append
    with pytest.raises(OutputError):
        streams.run(raises(OutputError("the disk is full")))
    assert not waited


def test_errors_name_the_uri(streams: Streams) -> None:
    with pytest.raises(CdcError) as caught:
        streams.run(raises(ConfigurationError("odd", "Check the host in source.uris, and source.password_file.")))
    assert str(caught.value) == "odd. Check the host in the URI, and the variable TARANTOOL_CDC__SOURCE__PASSWORD."


@pytest.mark.parametrize("error", [GAP, SnapshotNeededError("only a snapshot will do"), PositionError("it is behind")])
def test_what_the_stream_cannot_bring_comes_with_a_snapshot(
    streams: Streams, capfd: pytest.CaptureFixture[str], error: CdcError
) -> None:
    first, second = streams.run(raises(error), ends)
    assert (first.known.forced, second.known.forced) == (None, error.message)
    assert second.checkpoint is first.checkpoint
    assert "Reading all rows again" in capfd.readouterr().err


def test_without_images_a_gap_is_reported(streams: Streams, capfd: pytest.CaptureFixture[str]) -> None:
    """Showing all rows of all spaces would bury what is missing."""
    first, second = streams.run(raises(GAP), ends, has_images=False)
    assert second.known.forced is None
    assert second.checkpoint is not first.checkpoint
    assert "Changes up to now are missing" in capfd.readouterr().err


def test_a_stop_and_a_reader_that_ends_are_no_errors(streams: Streams, capfd: pytest.CaptureFixture[str]) -> None:
    def stopped(_: Beginning) -> bool:
        streams.stop()
        raise PublishAborted("stopped while nobody read the output")

    streams.run(stopped)
    assert "stopped" not in capfd.readouterr().err


def test_a_stop_ends_the_wait(streams: Streams) -> None:
    def lost(_: Beginning) -> bool:
        threading.Timer(0.05, streams.stop).start()
        raise ConnectionLostError("it broke")

    streams.source.next_delay = lambda: 60.0  # type: ignore[method-assign]
    streams.run(lost)


def test_only_the_uri_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["watch"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("the following arguments are required: URI")
