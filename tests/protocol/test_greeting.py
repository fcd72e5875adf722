"""Greetings: Tarantool's own, and what else answers on a port."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.protocol.greeting import GREETING_BYTES, parse_greeting
from cdc.protocol.session import Session
from tests.fakes.profiles import MANY

UUID_TEXT = "6da593ef-ab28-4913-a250-d41259bdbe10"


def greeting(line: str = f"Tarantool 2.11.5 (Binary) {UUID_TEXT}", salt: bytes = bytes(32)) -> bytes:
    return line.encode().ljust(63) + b"\n" + base64.b64encode(salt).ljust(63) + b"\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.6.0", (2, 6, 0)),
        ("2.11.5", (2, 11, 5)),
        ("3.3.0", (3, 3, 0)),
        ("3.10.12", (3, 10, 12)),
    ],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    parsed = parse_greeting(greeting(f"Tarantool {text} (Binary) {UUID_TEXT}", bytes(range(32))))
    assert parsed.version == version
    assert parsed.uuid == UUID(UUID_TEXT)
    assert parsed.salt == bytes(range(20))
    assert parsed.version_text == ".".join(map(str, version))


WRONG = {
    "console": (greeting("Tarantool 2.11.5 (Lua console)").replace(b" " * 20, b" " * 20), "not Tarantool's|speaks"),
    "console with a uuid": (greeting(f"Tarantool 2.11.5 (Lua) {UUID_TEXT}"), r"speaks 'Lua'.*box\.cfg\.listen"),
    "http": (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n".ljust(GREETING_BYTES), r"not Tarantool's.*source\.uris"),
    "ssh": (b"SSH-2.0-OpenSSH_9.2p1\r\n".ljust(GREETING_BYTES, b"\0"), "not Tarantool's"),
    "memcached": (b"ERROR\r\n".ljust(GREETING_BYTES), "not Tarantool's"),
    "zeros": (bytes(GREETING_BYTES), "not Tarantool's"),
    "high bytes": (b"\xff" * GREETING_BYTES, "not Tarantool's"),
    "no version": (greeting(f"Tarantool (Binary) {UUID_TEXT}"), "not Tarantool's"),
    "uuid of dashes": (greeting(f"Tarantool 2.11.5 (Binary) {'-' * 36}"), "can't be read"),
    "salt that is not base64": (greeting()[:64] + b"!" * 63 + b"\n", "can't be read"),
    "salt that is short": (greeting(salt=bytes(19)), "19 bytes, 20 are needed"),
    "no salt": (greeting()[:64] + b" " * 63 + b"\n", "0 bytes"),
}


@pytest.mark.parametrize(("data", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_greetings(data: bytes, says: str) -> None:
    assert len(data) == GREETING_BYTES
    with pytest.raises(ProtocolError, match=says):
        parse_greeting(data)
    with pytest.raises(ProtocolError, match=says):
        Session(UUID(int=1)).receive_data(data)


@pytest.mark.parametrize("length", [0, 63, 64, 127])
def test_short_greeting_is_waited_for(length: int) -> None:
    session = Session(UUID(int=1))
    assert session.receive_data(greeting()[:length]) == []
    with pytest.raises(RuntimeError, match="not greeted"):
        _ = session.greeting
    assert len(session.receive_data(greeting()[length:])) == 1
    assert session.greeting.version == (2, 11, 5)


@MANY
@given(st.binary(min_size=GREETING_BYTES, max_size=GREETING_BYTES))
def test_any_bytes_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_greeting(data)


@MANY
@given(place=st.integers(0, GREETING_BYTES - 1), byte=st.integers(0, 255))
def test_any_single_wrong_byte_raises_nothing_else(place: int, byte: int) -> None:
    data = bytearray(greeting())
    data[place] = byte
    try:
        parsed = parse_greeting(bytes(data))
    except ProtocolError:
        return
    assert len(parsed.salt) == 20
