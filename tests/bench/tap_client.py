"""`python -m tests.bench.tap_client PORT dump|follow COUNT`: a TAP client that acknowledges and does nothing else.

Prints the time of the first message, once it has its feed, and of the last: a line of JSON each.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Final

from cdc.feeds.tap import wire
from cdc.feeds.tap.wire import ConnectFlag, Opcode, Status

_RECEIVE_BYTES: Final = 1024 * 1024
_FUTURE: Final = 2**64 - 1
_FLAGS_AT: Final = 27


def main(port: int, mode: str, count_max: int) -> None:
    """Count mutations, until there are as many as are expected."""
    flags, value = ConnectFlag.SUPPORT_ACK, b""
    if mode == "dump":
        flags |= ConnectFlag.DUMP
    else:
        flags, value = flags | ConnectFlag.BACKFILL, _FUTURE.to_bytes(8, "big")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(wire.request(Opcode.TAP_CONNECT, f"bench-{mode}".encode(), flags.to_bytes(4, "big"), value))
        buffer, count, first = bytearray(), 0, 0.0
        while count < count_max:
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                raise RuntimeError(f"the server has closed the connection after {count} messages")
            buffer += data
            start, length = 0, len(buffer)
            while length - start >= wire.HEADER.size:
                end = start + wire.HEADER.size + int.from_bytes(buffer[start + 8 : start + 12], "big")
                if end > length:
                    break
                opcode = buffer[start + 1]
                if opcode == Opcode.TAP_MUTATION:
                    if not count:
                        first = time.time()
                    count += 1
                if opcode != Opcode.NOOP and buffer[start + _FLAGS_AT] & 1:
                    connection.sendall(wire.response(opcode, Status.OK, int.from_bytes(buffer[start + 12 : start + 16], "big")))
                start = end
            del buffer[:start]
    print(json.dumps({"first": first, "last": time.time(), "count": count}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
