"""How fast the master's relay delivers to a reader that decodes nothing: the most that any follower could reach."""

from __future__ import annotations

import select
import socket
import time
import uuid
from typing import Final

import msgpack

from cdc.config.source import SourceSection
from cdc.local.interface import TarantoolServer
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Key
from cdc.protocol.session import Subscribed
from cdc.sources.connection import COALESCE_SECONDS, LOW_WATER_BYTES
from cdc.sources.handshake import expect, greet

_RECEIVE_BYTES: Final = 1024 * 1024
_ACK_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 600.0
# The last row's header lies at most this far before the end of the stream.
_TAIL_BYTES: Final = 256


def drain(master: TarantoolServer, start: VClock, lsn: int) -> tuple[float, int]:
    """Read the stream from `start` to the row `lsn` of origin 1; returns seconds from SUBSCRIBE's answer on, and bytes.

    It asks the kernel for wake-ups as the daemon's connection does, and tells the master its position as a replica must.
    The end is found by looking for the last lsn, as MessagePack, in the last bytes of each read.
    """
    marker = bytes([Key.LSN]) + bytes(msgpack.packb(lsn))
    replicaset_uuid = uuid.UUID(master.replicaset_uuid)
    (member,) = SourceSection.model_validate({"uris": [master.uri]}).members()
    connection = greet(member, uuid.uuid4(), frame_bytes_max=256 * 1024 * 1024)
    try:
        connection.session.subscribe(replicaset_uuid, start)
        before = connection.received_bytes
        expect(connection, Subscribed)
        started = time.monotonic()
        count = connection.received_bytes - before  # the first rows came with the answer
        with socket.socket(fileno=_duplicate(connection.fileno())) as raw:
            raw.setblocking(False)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, LOW_WATER_BYTES)
            poller = select.poll()
            poller.register(raw, select.POLLIN)
            buffer = memoryview(bytearray(_RECEIVE_BYTES))
            tail = b""
            next_ack = 0.0
            while (now := time.monotonic()) < started + _TIMEOUT_SECONDS:
                if now >= next_ack:
                    connection.send_bytes(connection.session.acknowledgement(start))
                    next_ack = now + _ACK_SECONDS
                poller.poll(COALESCE_SECONDS * 1000)
                try:
                    size = raw.recv_into(buffer)
                except BlockingIOError:
                    continue
                if not size:
                    raise connection.session.receive_end()
                count += size
                tail = (tail + bytes(buffer[max(0, size - _TAIL_BYTES) : size]))[-_TAIL_BYTES:]
                if marker in tail:
                    return time.monotonic() - started, count
    finally:
        connection.close()
    raise TimeoutError(f"the stream didn't reach lsn {lsn} in {_TIMEOUT_SECONDS:.0f} s")


def _duplicate(descriptor: int) -> int:
    return socket.dup(descriptor)
