"""The lines of docs/spark.md that lead from the topics to a catalog of Iceberg, and to readers of it, each as it is written."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from cdc.local.interface import KafkaServer
from cdc.local.jars import SPARK, jar_folder
from cdc.local.spark import spark_environment
from spark_jobs.tables.folders import catalog_name
from tests.spark import duck
from tests.spark.messages import put, schema
from tests.spark.test_live import Daemon

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT: Final = Path(__file__).parents[2]
SECTION: Final = (ROOT / "docs" / "spark.md").read_text().partition("**From the topics to a catalog.**")[2]
BLOCKS: Final = re.findall(r"^```(sh|python)\n(.*?)^```", SECTION.partition("**Paths.**")[0], re.M | re.S)
OTHER_ENGINES: Final = re.search(r"^place = (.*?)^\)\n", SECTION, re.M | re.S)
ACCOUNTS: Final[dict[str, Any]] = {"space": "accounts", "space_id": 513}


def test_the_first_hour_with_a_catalog(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("schema", "snapshot", "accounts")
    rows = [put("c", {"id": number, "balance": number * 10}, number, **ACCOUNTS) for number in range(1, 11)]
    change = put("u", {"id": 1, "balance": 15}, 11, **ACCOUNTS)  # with its row, as `history` needs it
    daemon.send(schema(0, columns=(("id", "unsigned"), ("balance", "integer")), **ACCOUNTS), *rows, change)
    (tmp_path / "jars").symlink_to(jar_folder(SPARK))

    named = catalog_name(daemon.prefix)

    def own(text: str) -> str:
        """The text with what differs here."""
        text = text.replace("127.0.0.1:9092", kafka.bootstrap_servers).replace("python -m", f"{sys.executable} -m")
        return re.sub(r"\bshop\b", daemon.prefix, re.sub(r"\bshop_", f"{named}_", text)).replace("$PWD", str(tmp_path))

    readers = ""
    environment = {**spark_environment(), "PYTHONPATH": str(ROOT)}
    del environment["PYSPARK_SUBMIT_ARGS"]
    script = "set -e\n"
    for kind, text in BLOCKS:
        if "read_current" in text:
            readers = own(text)
        elif kind == "python":
            script += f"{sys.executable} - <<'PYTHON'\n{own(text)}PYTHON\n"
        else:
            script += own(text)
    outcome = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    said = outcome.stdout
    assert '"key":{"id":1},"row":{"id":1,"balance":15},"seq":11' in said
    assert f"lake.cdc.{named}_accounts: " in said  # what `maintain` has done

    for line in re.findall(r"^(spark\.sql\.catalog\.lake\S*) +(\S+)$", own(BLOCKS[0][1]), re.M):
        spark.conf.set(*line)
    # Spark's own shell shows each value.
    shown: list[Any] = []
    statements = [line for line in readers.splitlines() if line]
    names: dict[str, Any] = {"spark": spark}
    for line in statements:
        if line.startswith(("from ", "mark ")):
            exec(line, names)  # noqa: S102 - the documentation's own lines
        else:
            shown.append(eval(line.partition("  #")[0], names).collect())  # noqa: S307 - the documentation's own lines
    current, as_of, fresh, merged = shown
    assert {int(row["id"]): int(row["balance"]) for row in current} == {1: 15, **{n: n * 10 for n in range(2, 11)}}
    assert len(as_of) == 10
    assert [tuple(map(int, row)) for (row,) in (fresh, merged)] == [(10, 555)] * 2

    assert OTHER_ENGINES is not None
    query = re.findall(r'"(SELECT metadata_location .*?)"', own(OTHER_ENGINES[0]))[0]
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        ((place,),) = connection.execute(query)
    found = duck.rows("SELECT count(*), sum(balance) FROM iceberg_scan(?)", place)
    assert [tuple(map(int, row)) for row in found] == [(10, 555)]
