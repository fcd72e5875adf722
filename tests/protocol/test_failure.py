"""Error packets: the sentence that an operator reads, and whether waiting heals it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import PositionError, ProtocolError, Remedy, ServerError
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import LogDamagedError, XlogGapError, parse_error
from tests.fakes.profiles import MANY


def packet(code: int, message: object = "it failed", *stack: dict[int, object]) -> tuple[dict[int, Any], dict[int, Any]]:
    return {0: 0x8000 | code}, {0x31: message, 0x52: {0: list(stack)}}


@pytest.mark.parametrize(
    ("code", "remedy", "says"),
    [
        (ErrorCode.ACCESS_DENIED, Remedy.OPERATOR, r"box\.schema\.user\.grant"),
        (ErrorCode.PASSWORD_MISMATCH, Remedy.OPERATOR, "password_file.*%25"),
        (ErrorCode.NO_SUCH_USER, Remedy.OPERATOR, r"box\.schema\.user\.create"),
        (ErrorCode.CFG, Remedy.WAIT, r"\(error 59\)$"),
        (ErrorCode.REPLICASET_UUID_MISMATCH, Remedy.OPERATOR, "another replica set"),
        (ErrorCode.UNSUPPORTED, Remedy.OPERATOR, "wal_mode"),
        (ErrorCode.CONNECTION_TO_SELF, Remedy.OPERATOR, "daemon's name"),
        (ErrorCode.LOADING, Remedy.WAIT, "still loading"),
        (ErrorCode.SYSTEM, Remedy.WAIT, r"\(error 115\)$"),
        (ErrorCode.READONLY, Remedy.WAIT, "add the replica set's leader"),
        (ErrorCode.UNKNOWN_REPLICA, Remedy.WAIT, "id was taken away, or has not reached this server yet"),
        (ErrorCode.TOO_EARLY_SUBSCRIBE, Remedy.WAIT, "id was taken away, or has not reached this server yet"),
        (ErrorCode.REPLICA_NOT_ANON, Remedy.WAIT, "got its id just now"),
        (ErrorCode.SYNC_QUORUM_TIMEOUT, Remedy.WAIT, "waits for the quorum"),
        (ErrorCode.SYNC_ROLLBACK, Remedy.WAIT, "was rolled back"),
        (ErrorCode.PROTOCOL, Remedy.OPERATOR, "tarantool-cdc unregister"),
        (ErrorCode.NIL_UUID, Remedy.WAIT, "isn't a member of a replica set yet.*source.uris"),
        (ErrorCode.SHUTDOWN, Remedy.WAIT, "another member of source.uris at once"),
        (ErrorCode.INVALID_VCLOCK, Remedy.OPERATOR, r"box\.ctl\.replica_gc"),
        (ErrorCode.SYNC_QUEUE_FULL, Remedy.WAIT, "wait for their quorum"),
        (ErrorCode.REPLICA_GC, Remedy.OPERATOR, "stop the daemon that has this UUID"),
        (ErrorCode.SYNC_TIMEOUT, Remedy.WAIT, "waits on"),
        (ErrorCode.XLOG_NOT_FOUND, Remedy.OPERATOR, "no log file that begins at this vclock"),
        (9999, Remedy.OPERATOR, r"\(error 9999\)$"),
    ],
)
def test_who_must_act(code: int, remedy: Remedy, says: str) -> None:
    error = parse_error(*packet(code))
    assert isinstance(error, ServerError)
    assert error.code == code
    assert error.remedy is remedy
    assert str(error).startswith("the server says: it failed (error")
    with pytest.raises(ServerError, match=says):
        raise error


def test_guest_is_who_asks_where_no_user_is_named() -> None:
    """The user was forgotten more likely than that guest is to be given everything."""
    error = parse_error(*packet(ErrorCode.ACCESS_DENIED, "Read access to universe '' is denied for user 'guest'"))
    hint = "Without a user in source.uris it is guest who asks: write user:password@host:port there. Or grant it: box.schema"
    assert hint in str(error)
    assert "grant('guest', 'replication')" in str(error)
    error = parse_error(*packet(ErrorCode.ACCESS_DENIED, "Read access to universe '' is denied for user 'cdc'"))
    assert "guest" not in str(error)


def test_gap_by_its_number_and_by_its_kind() -> None:
    """2.6.0 sends the number of any Lua error."""
    for code, stack in ((219, ()), (32, ({0: "XlogGapError", 3: "Missing .xlog file"},))):
        error = parse_error(*packet(code, "Missing .xlog file", *stack))
        assert isinstance(error, XlogGapError)
        assert isinstance(error, PositionError)
        assert "Missing .xlog file" in str(error)
        assert "on_gap" in str(error)
    assert isinstance(parse_error(*packet(32, "a Lua error", {0: "LuajitError", 3: "x"})), ServerError)


def test_log_file_that_is_not_there_is_a_gap_where_rows_of_the_log_were_requested() -> None:
    """So source.on_gap decides, after the other members have been asked."""
    missing = packet(ErrorCode.XLOG_NOT_FOUND, "xlog file not found")
    assert type(parse_error(*missing, is_of_log=True)) is XlogGapError
    assert isinstance(parse_error(*missing), ServerError)


def test_log_that_the_server_cannot_read() -> None:
    """It is a gap, where rows of the log were requested: a snapshot reads other files in this format."""
    damaged = packet(32, "tx checksum mismatch", {0: "XlogError", 3: "tx checksum mismatch"})
    error = parse_error(*damaged, is_of_log=True)
    assert isinstance(error, LogDamagedError)
    assert isinstance(error, XlogGapError)
    assert str(error).startswith("the master can't read its own logs, which are damaged: tx checksum mismatch. ")
    assert "on_gap" in str(error)
    error = parse_error(*damaged)
    assert isinstance(error, ServerError)
    assert error.remedy is Remedy.OPERATOR


def test_causes_are_told_newest_first() -> None:
    error = parse_error(*packet(5, "third", {0: "ClientError", 3: "third"}, {3: "second"}, {3: "first"}))
    assert "third; caused by: second; caused by: first" in str(error)
    assert isinstance(error, ServerError)
    assert error.kind == "ClientError"


def test_message_of_the_stack_alone() -> None:
    assert "from the stack" in str(parse_error({0: 0x8005}, {0x52: {0: [{3: "from the stack"}]}}))


@pytest.mark.parametrize("body", [{}, {0x31: 5}, {0x52: 1}, {0x52: {0: []}}, {0x52: {0: [5]}}, {0x52: {0: [{3: 5}]}}])
def test_error_without_a_message(body: dict[int, Any]) -> None:
    error = parse_error({0: 0x8005}, body)
    assert isinstance(error, ProtocolError)
    assert "error 5 without a message" in str(error)


JUNK = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([0, 3, 5, 0x31, 0x52]), inner, max_size=3),
)


@MANY
@given(code=st.integers(0, 0x7FFF), body=st.dictionaries(st.sampled_from([0x31, 0x52]), JUNK))
def test_any_body_makes_an_error(code: int, body: dict[int, Any]) -> None:
    error = parse_error({0: 0x8000 | code}, body)
    assert isinstance(error, ServerError | PositionError | ProtocolError)
    assert str(error)


def test_the_user_who_lacks_a_right_is_named_in_the_remedy() -> None:
    error = parse_error(*packet(42, "Read access to universe '' is denied for user 'reader'"))
    assert "box.schema.user.grant('reader', 'replication')" in str(error)
    assert "<user>" not in str(error)


def test_a_former_connection_is_told_in_plain_words_first() -> None:
    """The server's own sentence says that an option was wrong."""
    text = "Incorrect value for option 'replication': duplicate connection with the same replica UUID"
    found = parse_error(*packet(ErrorCode.CFG, text))
    assert isinstance(found, ServerError)
    assert found.remedy is Remedy.WAIT
    assert str(found).startswith("a former connection of this daemon's name is still open at the server. The connection closes")
    assert str(found).endswith(f"The server says: {text} (error {int(ErrorCode.CFG)})")
