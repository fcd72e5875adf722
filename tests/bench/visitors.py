"""A thousand open pages, and others who only trouble the listener: a process of its own, beside the daemon that is measured.

`python -m tests.bench.visitors PORT PAGES`: opens the pages' streams, prints a line once they are open, and reads them. One
thread sends hostile requests at the same time: half ones, wrong Hosts, wrong tokens, long heads, bodies without an end, and
connections that say nothing. It ends when its input does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

_HOSTILE: Final = (
    b"GET /page/stream HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
    b"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef0123\r\n\r\n",
    b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /snapshot HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"",
)
_STREAM: Final = b"GET /page/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PER_SECOND: Final = 200
"""Hostile connections per second; the listener accepts half as many."""


@contextlib.contextmanager
def visitors(port: int, page_count: int) -> Iterator[None]:
    """Have that many open pages, and hostile requests beside them, within this; nothing if there are to be none."""
    if not page_count:
        yield
        return
    command = [sys.executable, "-m", __name__, str(port), str(page_count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "open":
                raise RuntimeError("the pages can't be opened")
            yield
            process.stdin.close()
            lost = process.stdout.readline().strip()
            if lost != "0 lost":
                raise RuntimeError(f"of {page_count} pages the daemon has dropped some: {lost}")
        finally:
            process.kill()


def open_pages(port: int, count: int) -> selectors.DefaultSelector:
    """Open that many streams; raises OSError if the daemon refuses one."""
    found = selectors.DefaultSelector()
    for _ in range(count):
        page = socket.create_connection(("127.0.0.1", port), timeout=30)
        page.sendall(_STREAM)
        head = page.recv(100)
        if b" 200 " not in head:
            raise ConnectionRefusedError(head)
        page.setblocking(False)
        found.register(page, selectors.EVENT_READ)
    return found


def trouble(port: int, is_stopping: threading.Event) -> None:
    """Send hostile requests until told to stop."""
    held: list[socket.socket] = []
    number = 0
    while not is_stopping.wait(1 / _PER_SECOND):
        number += 1
        with contextlib.suppress(OSError):
            other = socket.create_connection(("127.0.0.1", port), timeout=1)
            other.sendall(_HOSTILE[number % len(_HOSTILE)])
            held.append(other)
        while len(held) > _PER_SECOND:
            held.pop(0).close()


def main() -> None:
    """Run until the input ends."""
    port, count = map(int, sys.argv[1:])
    pages = open_pages(port, count)
    is_stopping = threading.Event()
    hostile = threading.Thread(target=trouble, args=(port, is_stopping), daemon=True)
    hostile.start()
    print("open", flush=True)

    def wait_for_end() -> None:
        sys.stdin.read()
        is_stopping.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    lost = 0
    while not is_stopping.is_set():
        for key, _ in pages.select(0.2):
            with contextlib.suppress(OSError):
                if not socket.socket.recv(key.fileobj, 1_000_000):  # type: ignore[arg-type] # they are all sockets
                    pages.unregister(key.fileobj)
                    lost += 1
        time.sleep(0.05)
    print(f"{lost} lost", flush=True)


if __name__ == "__main__":
    main()
