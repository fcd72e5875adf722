"""`tarantool-cdc demo`: runs the complete pipeline on this machine, once, and compares the result with the master.

    Tarantool ◀─ workload (inserts, replaces, updates, upserts, deletes, transactions, a format change)
        └─▶ tarantool-cdc run ─▶ Kafka ─▶ Spark: current ─▶ Delta tables ══ equal to the master's contents?

All servers are real. They are started under a temporary directory on free ports, and are gone when the demo ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgpack
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from cdc.errors import CdcError, ConnectionLostError
from cdc.events.json_values import encode, plain
from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.servers import local_servers
from cdc.local.spark import spark_environment
from cdc.protocol.extensions import decode_extension

SPACES: Final = ("accounts", "orders")
WORK_SECONDS: Final = 8
CATCH_UP_SECONDS: Final = 60
SHOWN_ROWS: Final = 6
_OPERATIONS: Final = {"r": "snapshot", "c": "create", "u": "update", "d": "delete", "t": "truncate"}


class DemoError(CdcError):
    """A part of the demo failed."""


def demo(*, keep: bool) -> bool:
    """Run the demo and report its results. Return whether the tables equal the master's contents."""
    if find_spec("pyspark") is None:
        raise DemoError("The Spark jobs need PySpark: pip install '.[spark]'")
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="tarantool-cdc-demo-"))
    directory.chmod(0o755)
    started = time.monotonic()
    try:
        with local_servers(directory) as servers:
            console.rule("servers")
            tarantool = servers.start_tarantool()
            console.print(f"Tarantool {tarantool.eval('return _TARANTOOL')[0]} at port {tarantool.port}")
            kafka = servers.start_kafka()
            console.print(f"Kafka at {kafka.bootstrap_servers} after {time.monotonic() - started:.0f} s")
            tarantool.eval(files("cdc.local").joinpath("demo_workload.lua").read_text())
            console.print(f"{tarantool.eval('return demo.fill()')[0]} accounts exist before the daemon starts")
            console.rule("changes")
            _follow(console, directory, tarantool, kafka)
            console.rule("tables")
            tables = _tables(console, directory, kafka)
            is_equal = _compare(console, tarantool, tables)
        console.print(f"\nthe demo took {time.monotonic() - started:.0f} s")
        return is_equal
    finally:
        if keep:
            console.print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _follow(console: Console, directory: Path, tarantool: TarantoolServer, kafka: KafkaServer) -> None:
    """Run the daemon during the workload, and show the events that arrive."""
    port = free_port()
    config = directory / "demo.toml"
    config.write_text(
        f"""name = "demo"
[source]
uris = ["{tarantool.uri}"]
[kafka]
bootstrap_servers = "{kafka.bootstrap_servers}"
topic_prefix = "demo"
[state]
path = "{directory / "state"}"
[http]
listen = "127.0.0.1:{port}"
"""
    )
    command = [sys.executable, "-m", "cdc", "run", "--config", str(config)]
    daemon = ChildProcess("tarantool-cdc", command, log_file=directory / "daemon.log")
    try:
        daemon.wait_until_ready(lambda: _missing(port, lambda status: status["state"] == "streaming"), 60)
        console.print(f"the daemon follows; a workload runs for {WORK_SECONDS} s. The first events of each kind:")
        worker = threading.Thread(target=tarantool.eval, args=("return demo.work(...)", WORK_SECONDS))
        worker.start()
        worker.join()
        vclock = {str(origin): lsn for origin, lsn in tarantool.vclock().items() if origin != 0}
        daemon.wait_until_ready(
            lambda: _missing(port, lambda status: status["position"]["checkpoint"] == vclock), CATCH_UP_SECONDS
        )
        _show_events(console, kafka)
    finally:
        daemon.terminate()
    status = daemon.exit_status()
    if status != 0:
        raise DemoError(f"the daemon ended with status {status}:\n{daemon.log_text()[-2000:]}")


def _missing(port: int, is_reached: Any) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=2) as answer:
            status: dict[str, Any] = json.load(answer)
    except OSError as error:
        return f"its status can't be read: {error}"
    return None if is_reached(status) else f"it is {status['state']} at {status['position']}"


def _show_events(console: Console, kafka: KafkaServer) -> None:
    """Print a sample of each topic's events, and their number."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "demo",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    topics = consumer.list_topics(timeout=10).topics
    partitions = [
        TopicPartition(f"demo.{space}", partition, OFFSET_BEGINNING)
        for space in SPACES
        for partition in topics[f"demo.{space}"].partitions
    ]
    consumer.assign(partitions)
    counts: Counter[tuple[str, str]] = Counter()
    samples: dict[tuple[str, str], tuple[str, str]] = {}
    unread = len(partitions)
    while unread:
        message = consumer.poll(10)
        if message is None:
            raise ConnectionLostError("Kafka stopped answering")
        if message.error() is not None:
            unread -= 1  # the end of a partition: nothing else is reported as an error here
            continue
        value = message.value()
        event = json.loads(value) if value is not None else {"op": "tombstone"}
        kind = "patch" if "patch" in event else _OPERATIONS.get(event["op"], event["op"])
        topic, key = message.topic() or "", message.key() or b""
        counts[topic, kind] += 1
        samples.setdefault((topic, kind), (key.decode(), _short(event)))
    consumer.close()
    table = Table("topic", "event", "count", "key", "for example", show_lines=False, expand=True)
    for (topic, kind), count in sorted(counts.items()):
        name, example = samples[topic, kind]
        table.add_row(topic, kind, f"{count:,}", name, example)
    console.print(table)


def _short(event: Mapping[str, Any]) -> str:
    shown = event.get("after") or event.get("patch")
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)[:120] if shown else ""


def _tables(console: Console, directory: Path, kafka: KafkaServer) -> dict[str, dict[str, str]]:
    """Run the Spark job `current` over Kafka's contents; return the rows of `current` as JSON texts by space and key."""
    commands = [
        "current", "--available-now",
        "--bootstrap-servers", kafka.bootstrap_servers, "--prefix", "demo",
        "--path", str(directory / "current"), "--checkpoint", str(directory / "checkpoint"),
        "then",
    ]  # fmt: skip
    commands += ["show", *(str(directory / "current" / space) for space in SPACES)]
    started = time.monotonic()
    console.print("Spark starts, writes the tables of current, and reads them: this takes a minute or two")
    with console.status("Spark: writing the tables, and reading them"):
        # In one session: starting another for each would take longer than the work itself.
        lines = _spark("-m", "spark_jobs.sequence", *commands)
    tables: dict[str, dict[str, str]] = {space: {} for space in SPACES}
    for line in lines.splitlines():
        if line.startswith('{"path":'):
            row = json.loads(line)
            tables[Path(row["path"]).name][_canonical(row["key"])] = _canonical(row["row"])
        elif line.startswith('{"command":'):
            done = json.loads(line)
            console.print(f"Spark: {done['command']} took {done['seconds']:.0f} s")
    console.print(f"Spark is done after {time.monotonic() - started:.0f} s")
    return tables


def _spark(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **spark_environment()}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise DemoError(f"a Spark job failed with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def _compare(console: Console, tarantool: TarantoolServer, tables: dict[str, dict[str, str]]) -> bool:
    """Compare each table with the master's own contents, read from it directly."""
    are_equal = True
    for space in SPACES:
        rows = _master_rows(tarantool, space)
        table = Table("key", "the master's row", f"the row of current/{space}", title=space, expand=True)
        shown = [*sorted(rows)[: SHOWN_ROWS // 2], *sorted(rows)[-SHOWN_ROWS // 2 :]]
        different = sorted(key for key in rows.keys() | tables[space].keys() if rows.get(key) != tables[space].get(key))
        for key in different[:SHOWN_ROWS] or shown:
            table.add_row(key, rows.get(key, "—"), tables[space].get(key, "—"))
        console.print(table)
        if different:
            are_equal = False
            console.print(f"[bold red]{space}: {len(different)} of {len(rows)} rows DIFFER[/]")
        else:
            console.print(f"[bold green]{space}: all {len(rows)} rows are equal[/]")
    return are_equal


def _master_rows(tarantool: TarantoolServer, space: str) -> dict[str, str]:
    """Return a space's rows as JSON texts by key, in the form of the events."""
    names, key_fields, tuples = tarantool.eval(
        """
        local space, names, parts = box.space[...], {}, {}
        for _, field in ipairs(space:format()) do table.insert(names, field.name) end
        for _, part in ipairs(space.index[0].parts) do table.insert(parts, part.fieldno) end
        return names, parts, space:select()
        """,
        space,
    )
    rows: dict[str, str] = {}
    for values in tuples:
        row = {name: plain(_value(value)) for name, value in zip(names, values, strict=False)}
        key = {names[field - 1]: row[names[field - 1]] for field in key_fields}
        rows[_canonical(key)] = _canonical(row)
    return rows


def _value(value: Any) -> Any:
    """Return the client's extension values as the daemon's."""
    if isinstance(value, msgpack.ExtType):
        return decode_extension(value.code, value.data)
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _value(item) for key, item in value.items()}
    return value


def _canonical(value: Any) -> str:
    """Return the same text for equal values: objects in a table's column may have their keys in another order."""
    return encode(json.loads(encode(value)) if not isinstance(value, dict | list) else value).decode()
