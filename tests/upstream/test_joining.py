"""What an id of the daemon means for members that join: known from what captured servers say of their instances."""

from __future__ import annotations

import gzip
from typing import Any
from uuid import UUID

import pytest

from cdc.commands.check_start import of_joins
from cdc.config import parse
from cdc.errors import ProtocolError
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot, parse_ballot
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.constants import Key
from cdc.protocol.greeting import GREETING_BYTES
from cdc.upstream.identity import instance_uuid
from cdc.upstream.joining import warning
from tests.fakes.captures import DIRECTORY, SERVER

OURS = instance_uuid("shop")
OTHERS = frozenset({SERVER, UUID(int=2), UUID(int=3)})


def captured(version: str) -> Ballot:
    """The ballot of a live server whose only instance is itself."""
    data = gzip.decompress((DIRECTORY / version / "control.s2c.bin.gz").read_bytes())[GREETING_BYTES:]
    frames = FrameDecoder().feed(data)
    return next(parse_ballot(body[Key.BALLOT]) for body in frames.bodies if Key.BALLOT in body)


def ballot(registered: frozenset[UUID] | None) -> Ballot:
    return Ballot(VClock(), VClock(), is_read_only=False, is_ready=True, registered=registered)


@pytest.mark.parametrize("version", ["2.11", "3.3"])
def test_a_server_that_joins_would_count(version: str) -> None:
    found = captured(version)
    assert found.registered == frozenset({SERVER})
    assert "_cluster has instances: 2 with this daemon" in (warning(found, OURS) or "")


def test_a_server_before_2_11_counts_nobody() -> None:
    found = captured("2.6")
    assert found.registered is None
    assert warning(found, OURS) is None


@pytest.mark.parametrize("registered", [OTHERS, OTHERS | {OURS}])
def test_the_daemon_counts_once(registered: frozenset[UUID]) -> None:
    assert "_cluster has instances: 4 with this daemon" in (warning(ballot(registered), OURS) or "")


@pytest.mark.parametrize("value", [7, ["nobody"], [None]])
def test_a_list_of_something_else(value: Any) -> None:
    with pytest.raises(ProtocolError, match="a ballot should list UUIDs"):
        parse_ballot({2: {}, 3: {}, 6: True, 9: value})


@pytest.mark.parametrize(("mode", "count"), [("registered", 1), ("anonymous", 0)])
def test_check_warns_once(mode: str, count: int) -> None:
    config = parse(
        {
            "name": "shop",
            "source": {"uris": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], "mode": mode},
            "kafka": {"bootstrap_servers": "127.0.0.1:4", "topic_prefix": "shop"},
        },
        "the test",
    )
    found = list(of_joins(config, [ballot(None), ballot(OTHERS), ballot(OTHERS)]))
    assert len(found) == count
    assert all(str(finding).startswith("source.mode: warning: while the daemon has an id") for finding in found)
    assert not any(finding.is_failure for finding in found)
