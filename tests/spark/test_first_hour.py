"""The lines of docs/spark.md that lead from the topics to a catalog of Iceberg, and to readers of it, each as it is written."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.local.interface import KafkaServer
from cdc.local.jars import ICEBERG_S3, SPARK, jar_folder
from cdc.local.s3 import S3
from cdc.local.servers import LocalServers
from cdc.local.spark import spark_environment
from spark_jobs.tables.folders import catalog_name
from tests.spark import duck
from tests.spark.messages import put, schema
from tests.spark.test_live import Daemon

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT: Final = Path(__file__).parents[2]
SECTION: Final = (ROOT / "docs" / "spark.md").read_text().partition("**From the topics to a catalog.**")[2]
BLOCKS: Final = re.findall(r"^```(sh|python|properties)\n(.*?)^```", SECTION.partition("**Paths.**")[0], re.M | re.S)
OTHER_ENGINES: Final = re.search(r"^place = (.*?)^\)\n", SECTION, re.M | re.S)
ACCOUNTS: Final[dict[str, Any]] = {"space": "accounts", "space_id": 513}
SPARKS_SHELL: Final = """
import json
from spark_jobs.runner.session import build_session
spark = build_session("reader", jars_directory="jars", table_format="iceberg")
def show(rows):
    print(json.dumps([[int(value) for value in row if isinstance(value, (int, Decimal))] for row in rows.collect()]))
from decimal import Decimal
"""
"""Spark's own shell shows each value. A row's first number is the first of its columns that isn't text or a time."""


def script_of(own: Any, more_settings: str) -> str:
    """All blocks in their order, as one script for a shell. The settings that are added go before those of the file end."""
    script = "set -e\n"
    for kind, text in BLOCKS:
        if "read_current" in text:
            lines = [line.partition("  #")[0] for line in own(text).splitlines() if line]
            shown = "\n".join(line if line.startswith(("from ", "mark ", "spark = ")) else f"show({line})" for line in lines)
            script += f"{sys.executable} - <<'PYTHON'\n{SPARKS_SHELL}{shown}\nPYTHON\n"
        elif kind == "python":
            script += f"{sys.executable} - <<'PYTHON'\n{own(text)}PYTHON\n"
        elif kind == "sh":
            script += own(text).replace("END\nexport", f"{more_settings}END\nexport")
    return script


@pytest.mark.parametrize("place", ["disk", "s3"])
def test_the_first_hour_with_a_catalog(kafka: KafkaServer, servers: LocalServers, tmp_path: Path, place: str) -> None:
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("schema", "snapshot", "accounts")
    rows = [put("c", {"id": number, "balance": number * 10}, number, **ACCOUNTS) for number in range(1, 11)]
    change = put("u", {"id": 1, "balance": 15}, 11, **ACCOUNTS)  # with its row, as `history` needs it
    daemon.send(schema(0, columns=(("id", "unsigned"), ("balance", "integer")), **ACCOUNTS), *rows, change)
    (tmp_path / "jars").mkdir()
    for jar in (file for jars in (SPARK, ICEBERG_S3)[: 1 + (place == "s3")] for file in jar_folder(jars).glob("*.jar")):
        (tmp_path / "jars" / jar.name).symlink_to(jar)

    named = catalog_name(daemon.prefix)

    def own(text: str) -> str:
        """The text with what differs here."""
        text = text.replace("127.0.0.1:9092", kafka.bootstrap_servers).replace("python -m", f"{sys.executable} -m")
        return re.sub(r"\bshop\b", daemon.prefix, re.sub(r"\bshop_", f"{named}_", text)).replace("$PWD", str(tmp_path))

    environment, settings = {**spark_environment(), "PYTHONPATH": str(ROOT)}, ""
    del environment["PYSPARK_SUBMIT_ARGS"]
    if place == "s3":
        s3 = servers.start_s3()
        environment |= s3.environment
        (documented,) = (text for kind, text in BLOCKS if kind == "properties")
        beside = re.findall(r"`(s3\.[\w.-]+ [^`]+)`", SECTION.partition("**Paths.**")[0])
        assert len(beside) == 2
        settings = documented.replace("s3://bucket", f"s3://{S3.BUCKET}")
        settings += "".join(f"spark.sql.catalog.lake.{line}\n" for line in beside).replace("http://server:9000", s3.url)
    outcome = subprocess.run(
        ["bash", "-c", script_of(own, settings)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    said = outcome.stdout
    assert '"key":{"id":1},"row":{"id":1,"balance":15},"seq":11' in said
    assert f"lake.cdc.{named}_accounts: " in said  # what `maintain` has done
    current, as_of, fresh, merged = (json.loads(line) for line in said.splitlines() if line.startswith("[["))
    assert sorted(row[-2:] for row in current) == [[1, 15], *([n, n * 10] for n in range(2, 11))]
    assert len(as_of) == 10
    assert fresh == merged == [[10, 555]]

    assert OTHER_ENGINES is not None
    query = re.findall(r'"(SELECT metadata_location .*?)"', own(OTHER_ENGINES[0]))[0]
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        ((found,),) = connection.execute(query)
    if place == "s3":
        assert found.startswith(f"s3://{S3.BUCKET}/warehouse/")
        return
    counted = duck.rows("SELECT count(*), sum(balance) FROM iceberg_scan(?)", found)
    assert [tuple(map(int, row)) for row in counted] == [(10, 555)]
