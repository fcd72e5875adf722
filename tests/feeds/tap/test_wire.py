"""Every message byte by byte, and what clients send in whatever pieces it comes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.feeds.tap import wire
from cdc.feeds.tap.wire import Opcode, Packet, Packets, Status, TapRequest, VBucketState, decode_request


def of_hex(text: str) -> bytes:
    return bytes.fromhex(text)


SENT = {
    "mutation": (
        wire.mutation(b"users:1", b'{"id":1}', 0x1F, 0x01020304, 0x1122),
        "80 41 0007 10 00 001f 0000001f 01020304 0000000000001122 0000 0004 ff 000000 00000000 00000000"
        "75736572733a31 7b226964223a317d",
    ),
    "key only": (
        wire.changed_key(b"users:1", 0x1F, 5, 6),
        "80 41 0007 10 00 001f 00000017 00000005 0000000000000006 0000 0006 ff 000000 00000000 00000000 75736572733a31",
    ),
    "delete": (
        wire.delete(b"users:1", 0x1F, 5, 6),
        "80 42 0007 08 00 001f 0000000f 00000005 0000000000000006 0000 0000 ff 000000 75736572733a31",
    ),
    "flush": (wire.flush(5, 6), "80 43 0000 08 00 0000 00000008 00000005 0000000000000006 0000 0000 ff 000000"),
    "begin of the backfill": (
        wire.engine_message(wire.EngineMessage.BEGIN_BACKFILL, 3, 9),
        "80 44 0000 08 00 0003 0000000c 00000009 0000000000000000 0004 0000 ff 000000 00000001",
    ),
    "end of the backfill": (
        wire.engine_message(wire.EngineMessage.END_BACKFILL, 3, 9),
        "80 44 0000 08 00 0003 0000000c 00000009 0000000000000000 0004 0000 ff 000000 00000008",
    ),
    "pending": (
        wire.vbucket_set(3, VBucketState.PENDING, 9),
        "80 45 0000 08 00 0003 0000000c 00000009 0000000000000000 0000 0000 ff 000000 00000003",
    ),
    "active": (
        wire.vbucket_set(3, VBucketState.ACTIVE, 9),
        "80 45 0000 08 00 0003 0000000c 00000009 0000000000000000 0000 0000 ff 000000 00000001",
    ),
    "noop": (wire.noop(9), "80 0a 0000 00 00 0000 00000000 00000009 0000000000000000"),
    "an answer": (
        wire.response(Opcode.TAP_CONNECT, Status.INVALID, 7, b"no"),
        "81 40 0000 00 00 0004 00000002 00000007 0000000000000000 6e6f",
    ),
    "a command": (
        wire.request(Opcode.DELETE, b"k", opaque=1, cas=2),
        "80 04 0001 00 00 0000 00000001 00000001 0000000000000002 6b",
    ),
}


@pytest.mark.parametrize("name", SENT)
def test_what_is_sent(name: str) -> None:
    message, expected = SENT[name]
    assert message.hex() == expected.replace(" ", "")


@pytest.mark.parametrize("name", ["mutation", "key only", "delete", "flush", "begin of the backfill", "pending"])
def test_a_message_that_asks_for_an_ack_differs_in_one_bit(name: str) -> None:
    message, _ = SENT[name]
    asking = wire.with_ack(message)
    assert [(place, one ^ two) for place, (one, two) in enumerate(zip(message, asking, strict=True)) if one != two] == [(27, 1)]
    assert wire.opaque_of(asking) == int.from_bytes(message[12:16], "big")


def connect(name: bytes, flags: int, values: bytes = b"") -> bytes:
    return wire.request(Opcode.TAP_CONNECT, name, flags.to_bytes(4, "big"), values)


LIST = struct.pack(">HHH", 2, 5, 1023)
WISHES = {
    "nothing said": (wire.request(Opcode.TAP_CONNECT), TapRequest("")),
    "backfill": (connect(b"a", 0x01, (1_600_000_000).to_bytes(8, "big")), TapRequest("a", 1_600_000_000)),
    "future": (connect(b"a", 0x01, b"\xff" * 8), TapRequest("a", 2**64 - 1)),
    "future, in 32 bits": (connect(b"a", 0x01, b"\0\0\0\0\xff\xff\xff\xff"), TapRequest("a", 0xFFFFFFFF)),
    "spymemcached's dump": (connect(b"a", 0x102), TapRequest("a", is_dump=True)),
    "spymemcached's backfill with ACKs": (connect(b"a", 0x111, bytes(8)), TapRequest("a", has_acks=True)),
    "vbuckets": (connect(b"a", 0x04, LIST), TapRequest("a", vbuckets=frozenset({5, 1023}))),
    "date and vbuckets": (connect(b"a", 0x05, bytes(7) + b"\7" + LIST), TapRequest("a", 7, vbuckets=frozenset({5, 1023}))),
    "no vbucket": (connect(b"a", 0x04, b"\0\0"), TapRequest("a", vbuckets=frozenset())),
    "takeover": (connect(b"a", 0x0C, LIST), TapRequest("a", vbuckets=frozenset({5, 1023}), is_takeover=True)),
    "takeover that doesn't announce its list": (
        connect(b"a", 0x08, LIST),
        TapRequest("a", vbuckets=frozenset({5, 1023}), is_takeover=True),
    ),
    "takeover of everything": (connect(b"a", 0x08), TapRequest("a", is_takeover=True)),
    "keys only": (connect(b"a", 0x30), TapRequest("a", has_acks=True, is_keys_only=True)),
    "checkpoints with a value that nobody knows": (
        connect(b"a", 0x40 | 0x04, LIST + b"???"),
        TapRequest("a", vbuckets=frozenset({5, 1023})),
    ),
    "unknown flags": (connect(b"a", 0xFFFFFF80), TapRequest("a")),
    "a name that isn't UTF-8": (connect(b"\xff", 0), TapRequest("\\xff")),
}


@pytest.mark.parametrize("name", WISHES)
def test_wishes(name: str) -> None:
    data, expected = WISHES[name]
    (packet,) = Packets().feed(data)
    assert decode_request(packet) == expected


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (connect(b"a", 0x01, b"\0" * 7), "7 bytes for its date"),
        (connect(b"a", 0x04), "0 vbuckets in 0 bytes"),
        (connect(b"a", 0x04, b"\0\2\0\1"), "2 vbuckets in 4 bytes"),
        (connect(b"a", 0x08, b"\0"), "0 vbuckets in 1 bytes"),
        (connect(b"a", 0x02, b"x"), "1 bytes after its values"),
        (wire.request(Opcode.TAP_CONNECT, b"a", b"\0" * 8), "8 bytes of extras"),
        (connect(b"a" * 1025, 0), "1025 bytes"),
    ],
)
def test_wishes_that_cannot_be(data: bytes, problem: str) -> None:
    (packet,) = Packets().feed(data)
    with pytest.raises(ProtocolError, match=problem):
        decode_request(packet)


ACKS = {
    "gomemcached": struct.pack(">BBHBBHIIQ", 0x81, 0x41, 0, 0, 0, 0, 0, 77, 0),
    "spymemcached": struct.pack(">BBHBBHIIQ", 0x81, 0x41, 0, 0, 0, 0, 36, 77, 0) + b"f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "ep-engine": struct.pack(">BBHBBHIIQ", 0x81, 0x41, 7, 16, 0, 0, 0, 77, 0),
}


@pytest.mark.parametrize("name", ACKS)
def test_acks_of_real_clients(name: str) -> None:
    first, second = Packets().feed(ACKS[name] + wire.noop(1))
    assert (first.magic, first.opcode, first.opaque) == (wire.RESPONSE, Opcode.TAP_MUTATION, 77)
    assert second.opcode == Opcode.NOOP


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.example\r\n", "0x47"),
        (struct.pack(">BBHBBHIIQ", 0x80, 0x40, 0, 0, 0, 0, 0xFFFFFFFF, 0, 0), "4294967295 bytes"),
        (struct.pack(">BBHBBHIIQ", 0x80, 0x40, 5, 4, 0, 0, 8, 0, 0), "5 bytes of key and 4 of extras in a body of 8"),
    ],
)
def test_what_is_no_packet(data: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        Packets().feed(data)


def test_a_body_that_is_too_long_is_refused_before_it_has_come() -> None:
    with pytest.raises(ProtocolError, match=r"101 bytes, at most 100 are accepted"):
        Packets(100).feed(struct.pack(">BBHBBHIIQ", 0x81, 0x41, 0, 0, 0, 0, 101, 0, 0))


@given(st.data())
def test_any_pieces_give_the_same_packets(data: st.DataObject) -> None:
    stream = b"".join(data.draw(st.lists(st.sampled_from([*ACKS.values(), *(one for one, _ in WISHES.values())]), max_size=6)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    packets, found = Packets(), list[Packet]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += packets.feed(stream[start:end])
    assert found == Packets().feed(stream)


def test_byte_by_byte() -> None:
    stream = b"".join([*ACKS.values(), *(one for one, _ in WISHES.values())])
    packets = Packets()
    assert [packet for byte in stream for packet in packets.feed(bytes([byte]))] == Packets().feed(stream)


@given(st.binary(max_size=200))
def test_any_bytes_are_packets_or_refused(data: bytes) -> None:
    try:
        found = Packets().feed(data)
    except ProtocolError:
        return
    for packet in found:
        if packet.opcode == Opcode.TAP_CONNECT and packet.magic == wire.REQUEST:
            try:
                decode_request(packet)
            except ProtocolError:
                continue


@given(
    st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 0x7FFF), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)
def test_a_client_reads_what_was_sent(key: bytes, value: bytes, vbucket: int, opaque: int, cas: int) -> None:
    (packet,) = Packets().feed(wire.mutation(key, value, vbucket, opaque, cas))
    assert (packet.key, packet.value, packet.status, packet.opaque, packet.cas) == (key, value, vbucket, opaque, cas)
