"""Subset of memcached's binary protocol that TAP needs: decoding of clients' packets, and encoding of the server's.

    0 magic │ 1 opcode │ 2 key length │ 4 extras length │ 5 data type │ 6 vbucket or status │ 8 body length │ 12 opaque │ 16 CAS
    24 extras, key, value

A client sends TAP_CONNECT. From then on the server sends commands and the client answers those that ask for an ACK. Real
clients send different ACKs: gomemcached's have 24 bytes, spymemcached's have a UUID as body, and ep-engine's announce a
key and extras that aren't there. Therefore only the opaque of an ACK is used, and exactly its body length is read.

Sources: memcached's protocol_binary.h (1.4 engine branch), spymemcached 2.12.3, gomemcached 0.3.4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from cdc.errors import ProtocolError

HEADER: Final = struct.Struct(">BBHBBHIIQ")
REQUEST: Final = 0x80
RESPONSE: Final = 0x81
BODY_BYTES_MAX: Final = 72 * 1024
"""Maximum body of a client's packet, in bytes: the longest accepted name, and a list of 32,768 vbuckets."""
NAME_BYTES_MAX: Final = 1024
KEY_BYTES_MAX: Final = 65_535
"""Longest key that a header can announce, in bytes."""


class Opcode(IntEnum):
    """Commands of the protocol."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    DELETE = 0x04
    QUIT = 0x07
    FLUSH = 0x08
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    STAT = 0x10
    SETQ = 0x11
    DELETEQ = 0x14
    SASL_LIST = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    TAP_CONNECT = 0x40
    TAP_MUTATION = 0x41
    TAP_DELETE = 0x42
    TAP_FLUSH = 0x43
    TAP_OPAQUE = 0x44
    TAP_VBUCKET_SET = 0x45


class Status(IntEnum):
    """Statuses of responses."""

    OK = 0x00
    NOT_FOUND = 0x01
    EXISTS = 0x02
    TOO_LARGE = 0x03
    INVALID = 0x04
    NOT_STORED = 0x05
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    UNKNOWN = 0x81
    OUT_OF_MEMORY = 0x82
    BUSY = 0x85


class ConnectFlag(IntFlag):
    """Flags of TAP_CONNECT. Other flags are ignored."""

    BACKFILL = 0x01
    DUMP = 0x02
    LIST_VBUCKETS = 0x04
    TAKEOVER = 0x08
    SUPPORT_ACK = 0x10
    KEYS_ONLY = 0x20


_FLAGS_WITHOUT_VALUE: Final = 0x3F
"""Mask of the known flags; unknown higher flags may bring further values."""


class VBucketState(IntEnum):
    """States in VBUCKET_SET."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


class EngineMessage(IntEnum):
    """Messages in OPAQUE that ep-engine's clients know."""

    BEGIN_BACKFILL = 1
    END_STREAM = 7
    END_BACKFILL = 8


_ACK: Final = 0x01
_NO_VALUE: Final = 0x02
_NETWORK_BYTE_ORDER: Final = 0x04
_TTL: Final = 255
"""Number of servers that may still forward a message: memcached refuses a message whose ttl has reached 0."""

# Header and extras: engine length 2, flags 2, ttl 1, reserved 3; a mutation also has item flags 4 and expiry 4.
_MUTATION: Final = struct.Struct(">BBHBBHIIQHHB3xII")
_OTHER: Final = struct.Struct(">BBHBBHIIQHHB3x")
_FLAGS_AT: Final = 27
_MUTATION_EXTRAS: Final = 16
_EXTRAS: Final = 8
_pack_mutation: Final = _MUTATION.pack
# The same layout with the constant fields combined into fewer numbers, for speed: most messages are mutations.
_pack_whole: Final = struct.Struct(">HHHHIIQQQ").pack
_MUTATION_CODE: Final = REQUEST << 8 | 0x41
_MUTATION_SIZES: Final = _MUTATION_EXTRAS << 8
_MUTATION_EXTRA: Final = _NETWORK_BYTE_ORDER << 32 | _TTL << 24
_pack_other: Final = _OTHER.pack


class Packet(NamedTuple):
    """A client's packet."""

    magic: int
    opcode: int
    key_length: int
    extras_length: int
    opaque: int
    body: bytes
    status: int = 0
    cas: int = 0

    @property
    def extras(self) -> bytes:
        """Bytes before the key."""
        return self.body[: self.extras_length]

    @property
    def key(self) -> bytes:
        """Bytes between the extras and the value."""
        return self.body[self.extras_length : self.extras_length + self.key_length]

    @property
    def value(self) -> bytes:
        """Bytes after the key."""
        return self.body[self.extras_length + self.key_length :]


class Packets:
    """Decoder of received bytes into complete packets."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.body_bytes_max = body_bytes_max
        self._pending = bytearray()
        self._put_back: list[Packet] = []

    def put_back(self, packets: list[Packet]) -> None:
        """Return these packets from the next `feed` first: they belong to another consumer."""
        self._put_back = packets

    def feed(self, data: bytes) -> list[Packet]:
        """Return the packets that are complete now.

        Raises ProtocolError for an invalid packet, because no packet after it can be found.
        """
        pending = self._pending
        pending += data
        found, self._put_back = self._put_back, []
        start = 0
        while len(pending) - start >= HEADER.size:
            magic, opcode, key_length, extras_length, _, status, body_length, opaque, cas = HEADER.unpack_from(pending, start)
            if magic not in (REQUEST, RESPONSE):
                raise ProtocolError(
                    f"a packet begins with 0x{magic:02x}, not 0x80 or 0x81: this isn't memcached's binary protocol"
                )
            if body_length > self.body_bytes_max:
                raise ProtocolError(f"a packet has a body of {body_length} bytes, at most {self.body_bytes_max} are accepted")
            # A response may announce a key and extras that it doesn't have.
            if magic == REQUEST and key_length + extras_length > body_length:
                raise ProtocolError(
                    f"a request has {key_length} bytes of key and {extras_length} of extras in a body of {body_length}"
                )
            end = start + HEADER.size + body_length
            if len(pending) < end:
                break
            body = bytes(pending[start + HEADER.size : end])
            found.append(Packet(magic, opcode, key_length, extras_length, opaque, body, status, cas))
            start = end
        del pending[:start]
        return found


@dataclass(frozen=True, slots=True)
class TapRequest:
    """A client's request in TAP_CONNECT."""

    name: str
    backfill_since: int = 0
    """Seconds since the epoch: changes since then are wanted. 0: everything; in the future: only new changes."""
    is_dump: bool = False
    vbuckets: frozenset[int] | None = None
    is_takeover: bool = False
    has_acks: bool = False
    is_keys_only: bool = False


def decode_request(packet: Packet) -> TapRequest:
    """Decode a TAP_CONNECT. Raises ProtocolError with the reason if it is invalid."""
    if len(packet.extras) not in (0, 4):
        raise ProtocolError(f"TAP_CONNECT has {len(packet.extras)} bytes of extras, not 4")
    if packet.key_length > NAME_BYTES_MAX:
        raise ProtocolError(f"a client's name has {packet.key_length} bytes, at most {NAME_BYTES_MAX} are accepted")
    flags = int.from_bytes(packet.extras, "big")
    value = packet.value
    since, vbuckets = 0, None
    if flags & ConnectFlag.BACKFILL:
        if len(value) < 8:
            raise ProtocolError(f"TAP_CONNECT with BACKFILL has {len(value)} bytes for its date, not 8")
        since, value = int.from_bytes(value[:8], "big"), value[8:]
    # Some clients append the list to a TAKEOVER without setting the flag.
    if flags & ConnectFlag.LIST_VBUCKETS or (flags & ConnectFlag.TAKEOVER and value):
        vbuckets, value = _vbuckets(value)
    if value and not flags & ~_FLAGS_WITHOUT_VALUE:
        raise ProtocolError(f"TAP_CONNECT has {len(value)} bytes after its values")
    return TapRequest(
        packet.key.decode("utf-8", "backslashreplace"),
        since,
        bool(flags & ConnectFlag.DUMP),
        vbuckets,
        bool(flags & ConnectFlag.TAKEOVER),
        bool(flags & ConnectFlag.SUPPORT_ACK),
        bool(flags & ConnectFlag.KEYS_ONLY),
    )


def _vbuckets(value: bytes) -> tuple[frozenset[int], bytes]:
    count = int.from_bytes(value[:2], "big")
    end = 2 + 2 * count
    if len(value) < max(2, end):
        raise ProtocolError(f"TAP_CONNECT names {count} vbuckets in {len(value)} bytes")
    return frozenset(struct.unpack(f">{count}H", value[2:end])), value[end:]


# Encoding.


def mutation(key: bytes, value: bytes, vbucket: int, opaque: int, cas: int) -> bytes:
    """Return the message that a key has this value."""
    length = len(key)
    return (
        _pack_whole(_MUTATION_CODE, length, _MUTATION_SIZES, vbucket, 16 + length + len(value), opaque, cas, _MUTATION_EXTRA, 0)
        + key
        + value
    )


def changed_key(key: bytes, vbucket: int, opaque: int, cas: int) -> bytes:
    """Return the message that a key has another value, for a client that wants no values."""
    length = _MUTATION_EXTRAS + len(key)
    flags = _NETWORK_BYTE_ORDER | _NO_VALUE
    head = (REQUEST, Opcode.TAP_MUTATION, len(key), _MUTATION_EXTRAS, 0, vbucket, length, opaque, cas)
    return _pack_mutation(*head, 0, flags, _TTL, 0, 0) + key


def delete(key: bytes, vbucket: int, opaque: int, cas: int) -> bytes:
    """Return the message that a key was deleted."""
    return _pack_other(REQUEST, 0x42, len(key), _EXTRAS, 0, vbucket, _EXTRAS + len(key), opaque, cas, 0, 0, _TTL) + key


def flush(opaque: int, cas: int) -> bytes:
    """Return the message that all keys were removed."""
    return _pack_other(REQUEST, Opcode.TAP_FLUSH, 0, _EXTRAS, 0, 0, _EXTRAS, opaque, cas, 0, 0, _TTL)


def engine_message(message: EngineMessage, vbucket: int, opaque: int) -> bytes:
    """Return a message that marks the begin or end of a backfill.

    Its four bytes belong to the engine, as `engine length` says.
    """
    head = _pack_other(REQUEST, Opcode.TAP_OPAQUE, 0, _EXTRAS, 0, vbucket, _EXTRAS + 4, opaque, 0, 4, 0, _TTL)
    return head + message.to_bytes(4, "big")


def vbucket_set(vbucket: int, state: VBucketState, opaque: int) -> bytes:
    """Return the message that sets a vbucket's state at the client."""
    head = _pack_other(REQUEST, Opcode.TAP_VBUCKET_SET, 0, _EXTRAS, 0, vbucket, _EXTRAS + 4, opaque, 0, 0, 0, _TTL)
    return head + state.to_bytes(4, "big")


def noop(opaque: int) -> bytes:
    """Return a NOOP, a sign of life."""
    return HEADER.pack(REQUEST, Opcode.NOOP, 0, 0, 0, 0, 0, opaque, 0)


def with_ack(message: bytes) -> bytes:
    """Return the TAP message with the flag that asks for an ACK."""
    return b"%b%c%b" % (message[:_FLAGS_AT], message[_FLAGS_AT] | _ACK, message[_FLAGS_AT + 1 :])


def opaque_of(message: bytes) -> int:
    """Return the opaque that the ACK of a message will have."""
    return int.from_bytes(message[12:16], "big")


def request(opcode: int, key: bytes = b"", extras: bytes = b"", value: bytes = b"", *, opaque: int = 0, cas: int = 0) -> bytes:
    """Return an ordinary command, as clients send it."""
    body = extras + key + value
    return HEADER.pack(REQUEST, opcode, len(key), len(extras), 0, 0, len(body), opaque, cas) + body


def response(opcode: int, status: Status, opaque: int, body: bytes = b"") -> bytes:
    """Return a response to an ordinary command."""
    return HEADER.pack(RESPONSE, opcode, 0, 0, 0, status, len(body), opaque, 0) + body
