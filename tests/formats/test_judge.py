"""Debezium's own transforms, and Kafka Connect's converters, understand every kind of event."""

from __future__ import annotations

import atexit
import base64
import functools
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from cdc.formats.options import Format
from cdc.local.jars import DEBEZIUM, class_path, jar_folder, java_command
from cdc.local.registry import Registry
from cdc.registry.questions import Questions
from tests.fakes.master import Master
from tests.formats.oracles import Ids, published
from tests.formats.test_events import FORMAT, ROW, as_event, master_with_users, work

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM: Final = Path(__file__).parent / "judge" / "Judge.java"
NAMES: Final = {
    "id": "int64",
    "name": "string",
    "balance": "io.debezium.data.Json",
    "price": "io.debezium.data.VariableScaleDecimal",
    "uuid": "io.debezium.data.Uuid",
    "at": "io.debezium.time.ZonedTimestamp",
    "for": "io.debezium.time.Interval",
    "more": "io.debezium.data.Json",
    "ratio": "float64",
    "data": "bytes",
    "yes": "boolean",
    "count": "int64",
}


@functools.cache
def compiled() -> str:
    """The folder with the program's classes, until the end of this process. To compile it costs more than to run it."""
    folder = tempfile.mkdtemp(prefix="tarantool-cdc-judge-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    jars = os.pathsep.join(map(str, jar_folder(DEBEZIUM).glob("*.jar")))  # only Java's own launchers know a class path's "*"
    compiler = [java_command(), "-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    command = [*compiler, "-d", folder, "-cp", jars, str(PROGRAM)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return folder


class Judge:
    """The program, which answers as many questions as it is asked: its start takes far longer than they do."""

    def __init__(self, registry: str, key: Format, value: Format) -> None:
        classes = os.pathsep.join([compiled(), class_path(DEBEZIUM)])
        command = [java_command(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, PROGRAM.stem]
        self._log = Path(compiled()) / f"{key}-{value}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, key, value, registry], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        atexit.register(self._process.kill)

    def __call__(self, message: Any) -> dict[str, Any]:
        """What it says of a message. Raises AssertionError if the message was too much for it."""
        topic, key, value = message
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{topic}\t{_shown(key)}\t{_shown(value)}\n")
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        judge.cache_clear()
        raise AssertionError(f"the program ended with {self._process.wait(60)}: {self._log.read_text()[-3000:]}")


judge = functools.cache(Judge)


def _shown(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode()


def judged(messages: list[Any], registry: Registry, key: Format, value: Format) -> list[dict[str, Any]]:
    """What the program says of each message."""
    one = judge(registry.own_url, key, value)
    return [one(message) for message in messages]


class RegistryIds(Ids):
    """The ids of a real registry, under subjects of their own."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._questions = Questions({"url": registry.url}, auto_register=True)
        self._suffix = uuid4().hex

    def __call__(self, wanted: Any) -> int:
        return self._questions.id_of(replace(wanted, subject=f"{wanted.subject}-{self._suffix}"))


def of_json(value: Any) -> Any:
    """Bytes as JSON has them."""
    if isinstance(value, dict):
        return {name: of_json(one) for name, one in value.items()}
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return value


@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
@pytest.mark.parametrize("chosen", ["json_schema", "avro"])
def test_debeziums_tools_read_every_event(registry: Registry, chosen: Format, images: bool) -> None:
    plain = published(master_with_users(), work, Ids(), images=images, key="json", value="json")
    messages = published(master_with_users(), work, RegistryIds(registry), images=images, key=chosen, value=chosen)
    found = judged(messages, registry, chosen, chosen)
    assert len(found) == len(plain)
    ops = set()
    for (_, plain_key, plain_value), one in zip(plain, found, strict=True):
        key = json.loads(plain_key) if plain_key is not None else None
        if plain_value is None:
            assert one["value"] is None
            assert one["router"]["topic"] == "shop.all", "a tombstone goes the same way"
            continue
        wanted = of_json(as_event(json.loads(plain_value)))
        ops.add(wanted["op"])
        assert without_nulls(one["value"]) == without_nulls(wanted)
        assert one["valueSchema"] == "shop.users.Envelope"
        assert one["names"] == NAMES
        check_transforms(one, wanted, key)
    assert ops == ({"r", "c", "u", "d", "t"})


def check_transforms(one: dict[str, Any], wanted: dict[str, Any], key: dict[str, Any] | None) -> None:
    op, row = wanted["op"], wanted["after"] or wanted["before"]
    errors = {name: one[name]["error"] for name in ("extract", "router", "partition", "changed") if "error" in (one[name] or {})}
    if op == "u" and row is None:  # its operations are all that it has, and no tool of Debezium's knows them
        assert errors.keys() == {"partition"}
        assert one["extract"] is None
    else:
        assert not errors
    if op == "t":
        assert one["extract"] is None, "Debezium drops truncations there"
        assert one["router"]["topic"] == "shop.all"
        return
    assert one["keySchema"] == "shop.users.Key"
    assert one["key"] == key
    assert one["router"]["key"] == {**(key or {}), "__space": "shop.users"}
    if row is not None:
        assert one["partition"]["partition"] is not None
        extracted = one["extract"]["value"]
        assert extracted.pop("__op") == op
        assert extracted.pop("__deleted") == ("true" if op == "d" else "false")
        assert extracted.pop("__source_seq") == wanted["source"]["seq"]
        assert without_nulls(extracted) == without_nulls(row)
    if op == "u" and wanted["before"] and wanted["after"]:
        changed = {name for name in row if wanted["before"].get(name) != wanted["after"].get(name)}
        assert one["changed"]["headers"]["Changed"] == f"[{', '.join(name for name in NAMES if name in changed)}]"


def test_values_of_the_type_table(registry: Registry) -> None:
    """What the semantic types make of them is theirs; the bytes come through both converters alike."""

    def more(master: Master) -> None:
        master.insert("users", *ROW)

    rows = []
    for chosen in ("json_schema", "avro"):
        messages = published(master_with_users(), more, RegistryIds(registry), images=True, key=chosen, value=chosen)
        rows.append(judged(messages, registry, chosen, chosen)[-1]["value"]["after"])
    assert rows[0] == rows[1]
    assert rows[0] == {
        "id": 2,
        "name": "two",
        "balance": None,
        "price": {"scale": 2, "value": base64.b64encode((-150).to_bytes(2, "big", signed=True)).decode()},
        "uuid": "00000000-0000-0000-0000-000000000005",
        "at": "2024-02-29T23:59:58.123456789+03:00",
        "for": "P1Y-2M3DT4H5M6.000000007S",
        "more": '{"a":[1,null]}',
        "ratio": 1.5,
        "data": base64.b64encode(b"a\xff").decode(),
        "yes": True,
        "count": -(2**63),
    }


@pytest.mark.parametrize("chosen", ["json_schema", "avro"])
def test_unsigned_numbers_as_decimals(registry: Registry, chosen: Format) -> None:
    def more(master: Master) -> None:
        for number in (2**64 - 1, 2**63, 127, 128, 0):
            master.replace("users", number)

    messages = published(
        master_with_users(), more, RegistryIds(registry), images=True, key=chosen, value=chosen, unsigned="decimal"
    )
    found = judged(messages, registry, chosen, chosen)
    assert [one["value"]["after"]["id"] for one in found[1:]] == [2**64 - 1, 2**63, 127, 128, 0]
    assert [one["key"]["id"] for one in found[1:]] == [2**64 - 1, 2**63, 127, 128, 0]


@pytest.mark.parametrize("envelope", ["debezium", "flat"])
@pytest.mark.parametrize("chosen", ["avro", "protobuf", "json_schema_registry"])
def test_the_registry_takes_schemas_and_their_next_versions(registry: Registry, chosen: Format, envelope: str) -> None:
    def more(master: Master) -> None:
        master.insert("users", 2)
        master.format("users", [*FORMAT, {"name": "city", "type": "string", "is_nullable": True}])
        master.insert("users", 3, *[None] * 11, "Oslo")
        if chosen == "avro":  # the others' rules don't allow that a field goes
            master.format("users", FORMAT[:-1])
            master.truncate("users")
            master.insert("users", 4)

    ids = RegistryIds(registry)
    messages = published(master_with_users(), more, ids, images=True, key=chosen, value=chosen, envelope=envelope)
    used = {value[1:5] for _, _, value in messages if value is not None}
    assert len(used) == (3 if chosen == "avro" else 2)
