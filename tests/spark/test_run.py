"""The command line, and what is asked of Kafka."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.runner.session import build_session

pytestmark = pytest.mark.spark

REQUIRED = ["--bootstrap-servers", "k:9092", "--prefix", "shop", "--path", "p", "--checkpoint", "c"]


def test_the_pattern_takes_spaces_and_leaves_control_topics() -> None:
    names = ["users", "users.old", "schemas", "transaction", "schema", "snapshot", "checkpoint", "heartbeat", "dlq"]
    topics = [f"sh.op.{name}" for name in names] + ["shxop.users", "sh.op", "other.sh.op.users"]

    def taken(spaces: str, *control: str) -> list[str]:
        pattern = Topics("k", "sh.op", spaces).pattern(control)
        return [topic for topic in topics if re.fullmatch(pattern, topic)]

    assert taken(".*") == ["sh.op.users", "sh.op.users.old", "sh.op.schemas"]
    assert taken("users|orders") == ["sh.op.users"]
    assert taken("users", "snapshot") == ["sh.op.users", "sh.op.snapshot"]


def test_names_of_spaces_become_topics_as_the_daemon_makes_them() -> None:
    assert Topics("k", "shop").of_space("ключ a-b.c_d") == "shop._____a-b.c_d"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown", *REQUIRED],
        ["current"],
        ["current", *REQUIRED, "--kafka-option", "x"],
        ["current", *REQUIRED, "--available-now", "--trigger-interval", "1 second"],
        ["changelog", *REQUIRED, "--missing-row", "skip"],
    ],
)
def test_wrong_usage_has_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        run.main(arguments)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("value", "reason"), [("(?P<n>.*)", "Unknown inline modifier"), ("a|*", "Dangling meta"), (r"\Qa", "Unclosed")]
)
def test_the_expression_of_spaces_is_one_of_java(value: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["current", *REQUIRED, "--spaces", value]) == 1
    assert f"current: --spaces {value!r} isn't a regular expression of Java: {reason}" in capsys.readouterr().err


def test_what_java_alone_takes_as_an_expression_is_taken(spark: SparkSession) -> None:
    topics = Topics("k", "shop", r"\p{Alpha}++")
    topics.check_spaces(spark)
    assert topics.chosen(spark, ["users", "users2"]) == ["users"]


def test_an_empty_folder_of_jars_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(JobError, match="no jars"):
        build_session("x", jars_directory=str(tmp_path_factory.mktemp("jars")))


def test_the_folder_of_jars_is_the_one_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["current", *REQUIRED, "--jars-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"current: There are no jars in {tmp_path}. ")


def test_a_session_that_is_there_is_used_as_it_is(spark: SparkSession) -> None:
    """Else all tests behind the first that runs a command would have the settings of a machine with more cores."""
    settings = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    for master in ("local[1]", None):
        assert build_session("again", master=master).sparkContext is spark.sparkContext
        assert [spark.conf.get(name) for name in settings] == ["1", "1"]


def test_names_that_java_would_look_for_in_all_jars_are_kept(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    for name in ("py4j", "scala", "org"):
        assert getattr(jvm, name) is getattr(jvm, name), name


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    (found,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == sys.executable


@pytest.mark.usefixtures("spark")
def test_a_kafka_that_does_not_answer_is_told_without_its_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    (tmp_path / "jaas").write_text(f'{module} required username="u" password="hunter2";\n')
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        options = {
            "kafka.sasl.jaas.config": f"@{tmp_path}/jaas",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.default.api.timeout.ms": "500",
            "kafka.request.timeout.ms": "400",
            "fetchOffset.numRetries": "1",
        }
        where = ["--bootstrap-servers", f"127.0.0.1:{closed.getsockname()[1]}", "--prefix", "shop", "--available-now"]
        places = ["--path", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "checkpoint")]
        given = [word for setting in options.items() for word in ("--kafka-option", "=".join(setting))]
        assert run.main(["changelog", *where, *places, *given]) == 1
    shown = capsys.readouterr().err
    assert f"changelog: no connection to --bootstrap-servers from this host ({where[1]}: Connection refused). " in shown
    assert f"changelog: Kafka doesn't answer at --bootstrap-servers {where[1]}. " in shown
    assert "hunter2" not in shown
