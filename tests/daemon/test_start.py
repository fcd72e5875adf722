"""What is known before a connection: from the configuration, the checkpoint and the state store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.config import Config, parse
from cdc.daemon.start import begin, doubts_about_spaces, known_before, options_of, supposed_before
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import StoredSpace
from cdc.schema.keys import space_prefix
from cdc.store.spool import FileSpool
from cdc.store.writer import StateWriter
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.options import Surroundings
from cdc.stream.batches.spaces import newly_published, no_longer_published
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.upstream.start import StartPlan, needed
from tests.fakes.master import SERVER
from tests.fakes.pipelines import pipeline
from tests.fakes.tuples import changes_of

AT = Position(VClock({1: 15}), 7, snapshot=SnapshotState(1, is_complete=True))


def space(space_id: int, name: str, *, version: int, flags: dict[str, Any] | None = None, key: bool = True) -> StoredSpace:
    row = [space_id, 1, name, "memtx", 0, flags or {}, [{"name": "id", "type": "unsigned"}]]
    return StoredSpace(space_id, row, {0: [space_id, 0, "pk", "tree", {}, [[0, "unsigned"]]]} if key else {}, version)


SPACES = [
    space(512, "users", version=1),
    space(513, "orders", version=0),
    space(514, "local", version=0, flags={"group_id": 1}),
    space(515, "no_key", version=0, key=False),
    space(516, "left_out", version=0),
    space(517, "renamed_before", version=2),
]


def config(tmp_path: Path, **sections: dict[str, Any]) -> Config:
    values: dict[str, Any] = {
        "name": "shop",
        "source": {"uris": ["m0:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path)},
        "spaces": {"exclude": ["left_out"]},
    }
    for name, section in sections.items():
        values.setdefault(name, {}).update(section)
    return parse(values, "test")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StateWriter]:
    found = StateWriter(tmp_path / "images", "shop", 0.0)
    yield found
    found.close()


def test_newly_published_spaces_are_those_that_a_pipeline_would_find(tmp_path: Path) -> None:
    options = options_of(config(tmp_path))
    target = pipeline(AT, SPACES, include=options.include, exclude=options.exclude)
    expected = tuple(form.name for form in target.published_forms() if not form.schema_version)
    assert newly_published(SPACES, options.space_filter()) == expected == ("orders",)


def test_spaces_that_are_left_out_are_those_that_have_come_out_before(tmp_path: Path) -> None:
    settings = config(tmp_path, spaces={"include": ["orders", "no_key"], "exclude": []})
    assert no_longer_published(SPACES, options_of(settings).space_filter()) == ("users", "renamed_before")
    assert no_longer_published(SPACES, options_of(config(tmp_path)).space_filter()) == ()


def test_what_is_known_with_a_store(tmp_path: Path, writer: StateWriter) -> None:
    checkpoint = Checkpoint(AT, {one.space_id: one for one in SPACES})
    found = known_before(config(tmp_path), checkpoint, writer, forced="a gap", is_first_connect=False)
    assert (found.checkpoint, found.has_store, found.store) == (AT, True, None)
    assert (found.newly_published, found.forced) == (("orders",), "a gap")
    assert (found.is_first_connect, found.wants_id) == (False, False)


def test_what_is_known_without_a_store(tmp_path: Path) -> None:
    checkpoint = Checkpoint(AT, {one.space_id: one for one in SPACES})
    found = known_before(config(tmp_path, state={"images": "none"}, source={"exclude_origins": [3]}), checkpoint, None)
    assert (found.has_store, found.store, found.newly_published, found.ignored) == (False, None, (), frozenset({3}))
    assert not needed(found).takes_snapshot


@pytest.mark.parametrize(("mode", "wants_id"), [("initial", True), ("initial_only", False)])
def test_a_snapshot_that_nobody_follows_needs_no_id(tmp_path: Path, mode: str, *, wants_id: bool) -> None:
    registered = config(tmp_path, source={"mode": "registered"}, snapshot={"mode": mode})
    assert known_before(registered, Checkpoint(), None).wants_id is wants_id


@pytest.mark.parametrize(("images", "takes_snapshot"), [("full", True), ("none", False)])
def test_before_the_store_is_opened_it_is_taken_for_level(tmp_path: Path, images: str, *, takes_snapshot: bool) -> None:
    """`check` says what `run` will do: with a store, newly published spaces need a snapshot."""
    checkpoint = Checkpoint(AT, {one.space_id: one for one in SPACES})
    found = supposed_before(config(tmp_path, state={"images": images}), checkpoint)
    assert needed(found).takes_snapshot is takes_snapshot
    all_known = Checkpoint(AT, {512: SPACES[0]})
    assert not needed(supposed_before(config(tmp_path, state={"images": images}), all_known)).takes_snapshot


def test_patterns_that_fit_none_of_the_spaces_are_doubts(tmp_path: Path) -> None:
    """What `check` refuses, `run` says: a space of the name may come."""
    checkpoint = Checkpoint(spaces={each.space_id: each for each in SPACES})
    assert not doubts_about_spaces(config(tmp_path), checkpoint)
    names = "The spaces are: left_out, orders, renamed_before, users."
    one = "spaces.include: 'user' matches no space; 'users' looks like it. " + names
    (found,) = doubts_about_spaces(config(tmp_path, spaces={"include": ["user", "orders"]}), checkpoint)
    assert found == one
    found, none = doubts_about_spaces(config(tmp_path, spaces={"include": ["user"]}), checkpoint)
    assert found == one
    assert none == f"no space is published. {names} Correct spaces.include and spaces.exclude if some should be."
    (none,) = doubts_about_spaces(config(tmp_path, spaces={"exclude": []}), Checkpoint())
    assert none.startswith("no space is published. The server has no spaces of its own yet: create one")


@pytest.mark.parametrize("topic_has", [(), (512,)])
def test_forms_that_the_checkpoint_topic_has_lost_come_from_the_store(
    tmp_path: Path, writer: StateWriter, topic_has: tuple[int, ...]
) -> None:
    """Retention deletes what hasn't changed for long, and the position is written all the time."""
    published = {512: SPACES[0], 517: SPACES[5]}
    writer.begin((), (2, 6))
    rows = changes_of([(space_prefix(space_id) + b"\x01", b"\x91\x01") for space_id in published])
    writer.submit(Batch([], 0, 0, 0, AT, True, dict(published), [], 0.0, rows, True))
    writer.mark_committed(AT)
    checkpoint = Checkpoint(AT, {space_id: published[space_id] for space_id in topic_has})
    with capture_logs() as said:
        known = known_before(config(tmp_path), checkpoint, writer)
        known_before(config(tmp_path), checkpoint, writer)
    (line,) = said
    assert f"the topic shop.checkpoint has lost the forms of {2 - len(topic_has)} space" in line["event"]
    assert (checkpoint.spaces, known.newly_published) == (published, ())
    surroundings = Surroundings(options_of(config(tmp_path)), SERVER, (2, 6, 0), lambda: FileSpool(tmp_path))
    target = begin(StartPlan(AT), checkpoint, writer, surroundings)
    assert [form.space_id for form in target.published_forms()] == [512, 517]
    assert writer.store.row_count == 2, "a form that is missing is no space that is gone"


def test_a_store_at_another_position_restores_no_forms() -> None:
    behind = Checkpoint(replace(AT, vclock=VClock({1: 14})), {512: SPACES[0]})
    older = Checkpoint(replace(AT, schema_version=1), {512: SPACES[0]})
    for stored in (behind, older, Checkpoint()):
        checkpoint = Checkpoint(AT)
        assert checkpoint.restore_forms(stored) == []
        assert not checkpoint.spaces
    assert Checkpoint().restore_forms(behind) == []
