"""What is said where no broker can be connected to."""

from __future__ import annotations

import socket

import pytest

from spark_jobs.runner.reachable import refusals


def test_one_that_takes_a_connection_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        good, bad = (f"127.0.0.1:{place.getsockname()[1]}" for place in (listening, closed))
        assert refusals(good) is None
        assert refusals(f"{bad}, PLAINTEXT://{good}") is None
        assert refusals(bad) == f"{bad}: Connection refused"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("localhost", "localhost: not HOST:PORT"),
        ("a:b", "a:b: not HOST:PORT"),
        ("a:65536,:1", "a:65536: not HOST:PORT; :1: not HOST:PORT"),
        (" , ", "no address is given"),
    ],
)
def test_what_is_no_address_is_named(address: str, reason: str) -> None:
    assert refusals(address) == reason
