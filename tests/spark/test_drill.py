"""From Tarantool through the daemon and Kafka into all tables of the lake, by jobs that are killed again and again.

Two loads run in Tarantool. One is random: DDL, renames, deletes, truncations and transactions. The other is a bank that moves
money between two spaces, one transaction per transfer. Meanwhile a reader adds up both spaces as of the watermark: any sum other
than the bank's total would be half a transfer.
"""

from __future__ import annotations

import json
import math
import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from cdc.local.interface import TarantoolServer
from cdc.local.jars import SPARK, jar_folder
from cdc.local.process import ChildProcess
from cdc.local.spark import spark_environment
from spark_jobs import run
from spark_jobs.current import read_current, watermark
from spark_jobs.history.store import History
from spark_jobs.runner.session import JARS_DIRECTORY_VARIABLE
from spark_jobs.tables import iceberg
from spark_jobs.tables.folders import folder
from spark_jobs.tables.format import TableFormat
from tests.live import feeds_process, replica, values
from tests.live.scene import Scene
from tests.live.waiting import wait_for
from tests.spark.formats import in_either_format, load

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

ACCOUNTS = 40
TOTAL = 2 * ACCOUNTS * 100
_LIFE_SECONDS = (15, 40)
"""Shortest and longest time between two kills: each run does some work, and none catches up."""
_MARK_SECONDS = 700

BANK = """
local fiber = require('fiber')
local format = {{'id', 'unsigned'}, {'balance', 'integer'}}
for _, name in ipairs{'savings', 'giro'} do
    local space = box.schema.space.create('bank_' .. name, {format = format})
    space:create_index('primary')
end
local spaces = {box.space.bank_savings, box.space.bank_giro}
box.begin()
for id = 1, %d do for _, space in ipairs(spaces) do space:insert{id, 100} end end
box.commit()
-- An account without money is closed, and opened again by the next transfer to it.
local function add(space, id, amount)
    local row = space:get(id)
    local balance = (row and row.balance or 0) + amount
    if balance == 0 then
        space:delete(id)
    elseif row then
        space:update(id, {{'+', 'balance', amount}})
    else
        space:insert{id, balance}
    end
end
bank = {transfers = 0}
bank.fiber = fiber.create(function()
    while not bank.stopping do
        box.begin()
        for _ = 1, math.random(3) do
            local amount = math.random(60)
            add(spaces[math.random(2)], math.random(%d), -amount)
            add(spaces[math.random(2)], math.random(%d), amount)
        end
        box.commit()
        bank.transfers = bank.transfers + 1
        fiber.sleep(0.02)
    end
    bank.stopped = true
end)
""" % (ACCOUNTS, ACCOUNTS, ACCOUNTS)  # noqa: UP031 - Lua has braces of its own


class Auditor(threading.Thread):
    """Thread that reads the bank's total `reads` times or a little more, equally often at each of the next `marks` watermarks."""

    def __init__(self, spark: SparkSession, lake: Path, known: TableFormat, reads: int, marks: int) -> None:
        super().__init__(name="auditor", daemon=True)
        self._spark = spark
        self._lake = lake
        self._format = known
        self._reads_per_mark = math.ceil(reads / marks)
        self._mark_count = marks
        self._commits = 0
        self.marks: list[int] = []
        self.wrong: dict[int, int] = {}
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while len(self.marks) < self._mark_count:
                mark = self._next_mark()
                # It is read again and again while the tables change. Endless reads would leave the jobs no processor time.
                for _ in range(self._reads_per_mark):
                    total = money(self._spark, self._lake, mark)
                    if total != TOTAL:
                        self.wrong[mark] = total
                self.marks.append(mark)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.trouble = error

    def result(self) -> list[int]:
        """Wait for all reads, and return the watermarks."""
        self.join()
        if self.trouble is not None:
            raise self.trouble
        assert not self.wrong, f"the money at these marks wasn't {TOTAL}: {self.wrong}"
        return self.marks

    def _next_mark(self) -> int:
        last = mark = self.marks[-1] if self.marks else -1
        while mark == last:
            self._commits = wait_for("another watermark", lambda: commits(self._lake, self._format, self._commits), _MARK_SECONDS)
            mark = watermark(self._spark, str(self._lake))
        return mark


def commits(lake: Path, known: TableFormat, above: int) -> int:
    """Return how often a watermark was published, 0 if not more often than `above`. To ask takes no time from the jobs."""
    table = lake / "_watermark"
    if known is iceberg:
        hint = table / "metadata" / "version-hint.text"
        count = int(hint.read_text() or 0) if hint.exists() else 0
    else:
        count = sum(1 for _ in (table / "_delta_log").glob("*.json"))
    return count if count > above else 0


def money(spark: SparkSession, lake: Path, mark: int) -> int:
    """Return the sum of all balances in both spaces at a watermark; 0 before the bank's first transaction."""
    frames = [read_current(spark, str(lake / name), mark).select("balance") for name in ("bank_savings", "bank_giro")]
    return int(frames[0].unionAll(frames[1]).agg(F.sum("balance")).collect()[0][0] or 0)


def master_rows(tarantool: TarantoolServer) -> dict[str, set[str]]:
    """Return the rows of each space that has a primary key, as texts."""
    (spaces,) = tarantool.eval(replica.SPACES)
    return {
        name: {values.text(row) for row in values.decode(tarantool.eval_raw(replica.ROWS, number))[0]} for number, name in spaces
    }


def rows_of(frame: DataFrame) -> set[str]:
    """Return the rows of a table as texts, from the JSON in `_row`."""
    texts = [values.text(list(json.loads(row["_row"]).values())) for row in frame.select("_row").collect()]
    assert len(texts) == len(set(texts))
    return set(texts)


@pytest.fixture
def commands(scene: Scene, tmp_path: Path, known: TableFormat) -> list[list[str]]:
    """Command lines of the jobs, each with a table and a checkpoint of its own."""
    source = ["--bootstrap-servers", scene.kafka.bootstrap_servers, "--prefix", scene.prefix]

    def job(name: str, table: str, *options: str) -> list[str]:
        place = ["--path", str(tmp_path / table), "--checkpoint", str(tmp_path / f"checkpoint-{table}")]
        return [name, *source, *place, "--table-format", known.NAME, *options]

    return [
        # Merges every few batches, so that some kills hit a merge.
        job("current", "current", "--merge-interval", "15 seconds"),
        job("changes", "changes"),
        job("changelog", "typed", "--typed"),
        job("history", "history", "--publish-every", "3"),
    ]


@pytest.fixture
def processes() -> Iterator[list[ChildProcess]]:
    """Processes that the test has started; they are killed at its end."""
    started: list[ChildProcess] = []
    yield started
    for process in started:
        process.kill()


@pytest.mark.parametrize(
    ("kills", "reads"),
    [
        pytest.param(1, 8, id="short", marks=pytest.mark.timeout(1800)),
        pytest.param(10, 1000, id="long", marks=pytest.mark.timeout(7200)),
    ],
)
@in_either_format
def test_tables_end_as_the_master_and_never_show_half_a_transfer(
    scene: Scene,
    spark: SparkSession,
    commands: list[list[str]],
    processes: list[ChildProcess],
    tmp_path: Path,
    seed: int,
    kills: int,
    reads: int,
    known: TableFormat,
) -> None:
    chance, tarantool, lake = random.Random(seed), scene.tarantool, tmp_path / "current"
    # Each space costs every job some seconds in a batch, however few its events are.
    scene.daemon.settings["spaces"] = {
        "include": ["bank_.*", "accounts", "emptied", "kinds", "morph", "pairs", "wanderer.*", "made_.*"]
    }
    scene.workload.create()
    tarantool.eval(BANK)
    scene.daemon.start()
    # One schema change in ten seconds: before the watermark passes a renamed space or key field, `current` rewrites tables.
    scene.workload.start(pause=1.0, rows_max=300)

    def start(*program: str) -> ChildProcess:
        jars = str(jar_folder(SPARK))
        process = ChildProcess(
            "the jobs",
            [sys.executable, "-m", *program],
            log_file=tmp_path / f"jobs-{len(processes)}.log",
            working_directory=Path(__file__).parents[2],
            environment={**spark_environment(), JARS_DIRECTORY_VARIABLE: jars},
        )
        processes.append(process)
        return process

    def start_all() -> ChildProcess:
        words = [word for command in commands for word in (*command, "--trigger-interval", "5 seconds", "then")]
        return start(feeds_process.__name__, str(jar_folder(SPARK)), *words)

    jobs = start_all()

    commit_count = 0
    while commit_count == 0 or money(spark, lake, watermark(spark, str(lake))) == 0:
        assert jobs.exit_status() is None, jobs.log_tail(60)
        commit_count = wait_for("a watermark", partial(commits, lake, known, commit_count), _MARK_SECONDS)
    auditor = Auditor(spark, lake, known, reads, marks=kills + 2)
    auditor.start()
    for _ in range(kills):
        status = jobs.exit_status(wait_seconds=chance.uniform(*_LIFE_SECONDS))
        assert status is None, jobs.log_tail(60)
        jobs.kill()
        jobs = start_all()
    wait_for("all of the reads", lambda: not auditor.is_alive() or jobs.exit_status() is not None, 7000)
    assert jobs.exit_status() is None, jobs.log_tail(60)
    marks = auditor.result()
    jobs.kill()

    tarantool.eval("bank.stopping = true")
    wait_for("the bank's closing", lambda: tarantool.eval("return bank.stopped") == [True])
    scene.workload.stop()
    scene.catch_up()
    # The last run is that of the command itself, which also completes the batches that the kills have left.
    jobs = start("spark_jobs.sequence", *(word for command in commands for word in (*command, "--available-now", "then")))
    assert jobs.exit_status(wait_seconds=900) == 0, jobs.log_tail(60)
    assert marks == sorted(marks)
    (transfers,) = tarantool.eval("return bank.transfers")
    assert transfers > 100

    stream = scene.check_events()
    counts = scene.workload.counts()
    assert kills < 10 or all(counts.get(kind) for kind in ("schema.rename", "schema.truncate", "schema.drop", "transaction")), (
        counts
    )
    expected = master_rows(tarantool)
    histories = History(spark, str(tmp_path / "history"))
    published = {event.source["table"] for event in stream.events}
    for space, rows in expected.items():
        if space not in published:
            continue
        table = str(lake / folder(space, ("_changes", "_watermark")))
        if not rows and not Path(table).exists():
            continue
        assert rows_of(read_current(spark, table)) == rows, space
        assert rows_of(read_current(spark, table, "watermark")) == rows, space
        if rows:
            assert rows_of(histories.intervals(space).where("_end_seq is null")) == rows, space
    seqs = sorted({event.seq for event in stream.events})
    found = load(spark, known, tmp_path / "changes").select("seq").collect()
    assert sorted(row["seq"] for row in found) == seqs
    typed = load(spark, known, tmp_path / "typed" / "bank_giro")
    last = typed.groupBy("key").agg(F.max_by("new.balance", "seq").alias("balance"), F.max_by("op", "seq").alias("op"))
    giro = {row["key"]: int(row["balance"]) for row in last.collect() if row["op"] != "d"}
    assert set(giro.values()) == {json.loads(row)[1] for row in expected["bank_giro"]}
    for number, source in enumerate((commands[1][1:5], ["--changes", str(tmp_path / "changes"), "--grace-seconds", "0"])):
        place = ["--path", str(tmp_path / f"audit-{number}"), "--checkpoint", str(tmp_path / f"checkpoint-audit-{number}")]
        assert run.main(["audit", *source, *place, "--table-format", known.NAME, "--available-now"]) == 0
