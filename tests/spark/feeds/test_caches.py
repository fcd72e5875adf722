"""How long the job cache_invalidation waits for a cache, and which addresses it takes."""

from __future__ import annotations

import socketserver
import threading
import time

import pytest

from spark_jobs.errors import JobError
from spark_jobs.feeds.caches import Address


class Refusing(socketserver.StreamRequestHandler):
    """A Redis that wants a password."""

    def handle(self) -> None:
        while self.rfile.readline():
            self.wfile.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_refused_login_ends_the_job_at_once(password: str | None) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cache = Address(f"redis://127.0.0.1:{server.server_address[1]}", password=password, patience_seconds=300).connect()
        began = time.monotonic()
        with pytest.raises(JobError, match=r"invalid username-password pair.*--password"):
            cache.invalidate(["a"])
        assert time.monotonic() - began < 60
        cache.close()
        server.shutdown()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redi://:p@h:1/0", "redi://h:1/0"),
        ("redis://u:p@h", "redis://h"),
        ("redis//u:p@h", "redis//h"),
        ("u:p@h", "h"),
    ],
)
def test_no_message_shows_a_login_in_the_url(url: str, shown: str) -> None:
    assert Address(url).shown == shown
    if not url.startswith("redis:"):
        with pytest.raises(JobError, match=f"^--to {shown}: it must begin with"):
            Address(url).connect()
