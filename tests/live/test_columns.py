"""No value of a column that is left out or masked comes out of a real daemon: on a topic, in its log, a page, or `verify`."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.store.store import StateStore
from tests.live.forked import run_command
from tests.live.scene import Scene
from tests.live.topics import TopicReader

RULES = [
    {"spaces": "users", "exclude": ["phone"], "hash": ["email"], "truncate": {"note": 4}},
    {"spaces": "use.*", "mask": {"profile": "***"}},
]
SPACE = """
local space = box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'email', 'string'}, {'phone', 'unsigned'},
    {'note', 'string'}, {'profile', 'any'}}})
space:create_index('primary')
for id = 1, 20 do space:insert{id, 'secretmail' .. id, 7654321000 + id, 'note secretnote' .. id, {secret = 'secretmap' .. id}} end
"""
WORK = """
local space = box.space.users
for id = 1, 20 do
    if id % 4 == 0 then space:delete(id)
    elseif id % 4 == 1 then space:update(id, {{'=', 'email', 'secretmail again'}, {'=', 'profile', 'secretmap again'}})
    elseif id % 4 == 2 then
        space:upsert({id, 'secretmail', 7654321000, 'secretnote', 'secretmap'}, {{'=', 4, 'secretnote again'}})
    else space:replace{id, 'secretmail new', 7654321999, 'note secretnote', box.NULL} end
end
space:upsert({99, 'secretmail', 7654321000, 'note secretnote', 'secretmap'}, {{'=', 4, 'secretnote again'}})
"""
UNTELLABLE = "box.space.users:update(1, {{'=', -1, 'secretmap'}})"
SECRETS = [
    b"secretmail",
    b"secretnote",
    b"secretmap",
    b"7654321",
    *(number.to_bytes(8, "big") for number in (7654321001, 7654321999)),
]


def found_in(data: bytes) -> list[bytes]:
    """The secrets in some bytes, also as hexadecimal and as base64."""
    packed = data.replace(b" ", b"")
    found = [secret for secret in SECRETS if secret in packed or secret.hex().encode() in packed]
    for secret in SECRETS:
        groups = [secret[shift : shift + (len(secret) - shift) // 3 * 3] for shift in range(3)]
        found += [secret for group in groups if len(group) > 3 and base64.b64encode(group) in packed]
    return found


def masked(scene: Scene, **sections: dict[str, Any]) -> None:
    for section, values in sections.items():
        scene.daemon.settings.setdefault(section, {}).update(values)
    scene.daemon.environment |= {
        "TARANTOOL_CDC__COLUMNS__RULES": json.dumps(RULES),
        "TARANTOOL_CDC__COLUMNS__SALT": "0123456789abcdef",
    }


def pages(scene: Scene) -> Iterator[bytes]:
    listen = scene.daemon.settings["http"]["listen"]
    for page in ("status", "metrics", "health"):
        with urllib.request.urlopen(f"http://{listen}/{page}", timeout=5) as answer:
            yield answer.read()


def on_topics(scene: Scene) -> list[bytes]:
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, committed=False) as reader:
        records = reader.below(reader.look_at_rest())
    assert len({record.topic for record in records}) > 3
    return [part for record in records for part in (record.key, record.value) if part is not None]


@pytest.mark.one_of_these
@pytest.mark.parametrize("images", ["full", "none"])
def test_no_masked_value_comes_out(scene: Scene, images: str) -> None:
    masked(scene, state={"images": images}, format={"on_error": "dlq"}, log={"level": "debug"})
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(WORK)
    scene.tarantool.eval(UNTELLABLE)
    scene.catch_up()
    for data in [*pages(scene), *on_topics(scene)]:
        assert not found_in(data), data
    letters = [data for data in on_topics(scene) if b'"body":' in data]
    assert len(letters) == (images == "none")
    assert all(json.loads(letter)["body"] is None for letter in letters)
    assert scene.daemon.terminate() == 0
    assert not found_in(scene.daemon.run.log_text().encode())
    if images == "full":
        _verify_shows_none(scene)


def _verify_shows_none(scene: Scene) -> None:
    """Even of a store that differs, whose rows it shows."""
    store = StateStore(Path(scene.daemon.settings["state"]["path"]) / "images")
    (space_id,) = store.space_ids()
    (first, row), (second, _), *_ = store.scan(space_id)
    assert found_in(row), "the store itself has everything"
    store.write([(first, None), (second, row)], [])
    store.close()
    file = scene.daemon.directory / f"{scene.daemon.name}.toml"
    ended = run_command("verify", "--config", str(file), environment=scene.daemon.environment)
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert sorted(line["what"] for line in lines) == ["different", "missing"]
    assert not found_in(f"{ended.stdout}{ended.stderr}".encode())


def test_an_error_that_ends_the_daemon_shows_no_value(scene: Scene) -> None:
    masked(scene, state={"images": "none"})
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(UNTELLABLE)
    assert scene.daemon.wait_for_end() != 0
    log = scene.daemon.run.log_text()
    assert "counts its field from the end of the row" in log
    assert not found_in(log.encode())


@pytest.mark.one_of_these
@pytest.mark.parametrize("images", ["full", "none"])
def test_rules_that_come_later_show_all_rows_again(scene: Scene, images: str) -> None:
    """A consumer that follows the topic has nothing from before then."""
    scene.daemon.settings["state"] |= {"images": images}
    scene.tarantool.eval(SPACE)
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    before = len(_values(scene))
    masked(scene)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.tarantool.eval(WORK)
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    values = _values(scene)
    assert before == 20
    assert not [value for value in values[before:] if found_in(value)]
    events = [json.loads(value) for value in values[before:]]
    if images == "full":
        # The transaction that comes first has its events, if there are any, in the rows that follow the `t`.
        assert {event["op"] for event in events[:2]} == {"t"}, "one in each partition"
    assert {event["after"]["id"] for event in events if event["op"] == "r"} >= {2, 3, 5, 19}
    assert all("phone" not in event["after"] for event in events if event["after"])


def _values(scene: Scene) -> list[bytes]:
    """The events of the space, in order."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, only="users") as reader:
        records = reader.below(reader.look_at_rest())
    values = [record.value for record in records if record.value is not None and record.key != b'{"name":""}']
    return sorted(values, key=lambda value: int(json.loads(value)["source"]["seq"]))
