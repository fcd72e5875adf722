"""The page's files: they fit together, ask no other host, and show every state of a daemon without a fault."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from cdc.ops.page_files import page_files
from cdc.ops.setup import Setup
from cdc.ops.status import Status
from cdc.ops.view import View
from cdc.positions.vclock import VClock
from cdc.registry.schema_ids import RegistryWait
from cdc.stream.reports.limbo_watch import OverdueQuorum
from cdc.stream.transactions.limbo import LimboState
from cdc.upstream.overview import Upstream

TEXTS: Final = {name: file.content.decode() for name, file in page_files().items()}
BYTES_MAX: Final = 60_000
"""All files together: somebody may look at them over a bad line, in the night."""
DOCUMENT: Final = Path(__file__).with_name("page_document.mjs")


def test_they_are_small() -> None:
    assert sum(len(text) for text in TEXTS.values()) < BYTES_MAX


def test_nothing_is_asked_of_other_hosts() -> None:
    """But for the names of namespaces, which nobody asks."""
    found = {url for text in TEXTS.values() for url in re.findall(r"\b\w+://[^\s\"'`)]*|[\"'(]//[^\"']+", text)}
    assert found <= {"http://www.w3.org/2000/svg"}


def test_nothing_is_put_in_as_html() -> None:
    """Names and rows come from users: they are texts."""
    for name, text in TEXTS.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:", text), (
            name
        )
        assert not re.search(r"\son\w+=|\sstyle=", text), name


def test_what_they_name_is_there() -> None:
    for name, text in TEXTS.items():
        for module in re.findall(r'from "\./([\w.]+)"', text):
            assert module in TEXTS, name
        for file in re.findall(r'(?:href|src)="page/([\w.]+)"', text):
            assert file in TEXTS, name
    for page, others in (("daemon", ["frame.js", "panels.js", "plots.js", "events.js"]), ("fleet", ["frame.js"])):
        ids = set(re.findall(r'\bid="([\w-]+)"', TEXTS[f"{page}.html"]))
        scripts = [TEXTS[name] for name in (f"{page}.js", *others)]
        used = {found for text in scripts for found in re.findall(r'(?:fill|terms|getElementById)\("([\w-]+)"', text)}
        assert len(used) > 8
        assert used - ids <= {"newest"}, "that one is made by the script"


def frames() -> dict[str, str]:
    """What a page shows of daemons in all kinds of states."""
    now, now_us = time.monotonic(), time.time_ns() // 1000
    found = {"new": Status("shop")}
    found["calm"] = Status("shop", state="streaming")
    well = found["well"] = Status("shop", state="streaming", upstream="a:3301", setup=Setup(ignored_origins=frozenset({3})))
    well.upstreams = (
        Upstream("a:3301", "following", "u", "2.6.0", False, VClock({1: 9, 3: 1}), VClock({1: 2}), 0, 7),
        Upstream("b:3301", "gap", "u", "2.6.0", True, VClock({1: 9}), VClock({1: 9}), 0, -3),
        Upstream("c:3301", "unreachable", error="refused"),
    )
    well.received = well.checkpoint = well.store_position = VClock({1: 9})
    well.kafka.committed(now, now + 1)
    stalled = found["stalled"] = Status("shop", state="streaming", setup=Setup(has_registry=True), is_reading=False)
    stalled.kafka.backlog.submitted(now - 100, 0.0)
    stalled.kafka.trouble = "refused"
    quorum = found["quorum"] = Status("shop", state="streaming")
    quorum.limbo = LimboState(2, 2, 100, 0, now_us - 20_000_000, 1, 45)
    quorum.overdue_quorum = OverdueQuorum(1, 45, now_us - 20_000_000, 2)
    registry = found["registry"] = Status("shop", state="streaming", setup=Setup(has_registry=True))
    registry.registry_wait = RegistryWait("s", "away", "it is away", now - 30)
    found["failed"] = Status("shop", state="failed", error="no")
    return {name: View(status).frame().decode() for name, status in found.items()}


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's scripts, and there is no node")
def test_every_state_is_shown(tmp_path: Path) -> None:
    """By the page's own scripts, in a document that has only what they use."""
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "frames.json").write_text(json.dumps({name: json.loads(frame) for name, frame in frames().items()}))
    ran = subprocess.run(["node", DOCUMENT, tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(ran.stdout)
    assert "Nothing is wrong: changes flow" in shown["calm"]
    assert "gap: 3 rows" in shown["well"]
    assert "3 (left out)" in shown["well"]
    assert "Kafka has committed nothing for 100 s" in shown["stalled"]
    assert "What to do" not in shown["stalled"], "the style sheet writes that"
    assert "holds everything up" in shown["quorum"]
    assert "Start the registry" in shown["registry"]
    for text in shown.values():
        assert not re.search(r"undefined|NaN|\[object", text)
