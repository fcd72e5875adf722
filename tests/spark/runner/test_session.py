"""The settings and packages with which a job starts its own Spark session, the garbage collector and the compiler among them."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark import SparkConf, SparkContext

from cdc.local.jars import SPARK
from cdc.local.spark import spark_environment
from spark_jobs.errors import JobError
from spark_jobs.runner.options import Secret
from spark_jobs.runner.session import (
    _COLLECTOR,
    _COMPILER,
    _DEFAULTS,
    _JAVA_VARIABLES,
    _check_version,
    _class_path,
    _java_options,
    _packages,
    _start_java,
)

_OTHER = "-Xss4m -XX:+UseZGC"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in _JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_the_one_that_takes_least_cpu() -> None:
    assert _java_options({}) == {_DEFAULTS: f"{_COLLECTOR} {_COMPILER}"}


@pytest.mark.parametrize("name", _JAVA_VARIABLES)
def test_one_that_the_environment_chooses_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, _OTHER)
    assert _java_options({}) == {_DEFAULTS: _COMPILER}


def test_one_that_a_setting_chooses_stays() -> None:
    assert _java_options({"spark.driver.extraJavaOptions": _OTHER}) == {_DEFAULTS: _COMPILER}


def test_one_that_the_settings_of_spark_choose_stays(nothing_chosen: Path) -> None:
    nothing_chosen.write_text(f"spark.driver.extraJavaOptions {_OTHER}\n")
    assert _java_options({}) == {_DEFAULTS: _COMPILER}


def test_options_in_its_place_stay(nothing_chosen: Path) -> None:
    nothing_chosen.write_text("spark.driver.defaultJavaOptions -Dcompany=here\n")
    assert _java_options({}) == {}


def test_other_options_of_java_choose_none(monkeypatch: pytest.MonkeyPatch, nothing_chosen: Path) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseStringDeduplication -Xmx1g")
    nothing_chosen.write_text("spark.driver.memory 2g\n")
    found = _java_options({"spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError"})
    assert _COLLECTOR in found[_DEFAULTS]


def test_secrets_are_not_in_java_s_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[SparkConf] = []
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda *, conf: started.append(conf))
    _start_java({"spark.driver.memory": "2g"})
    assert started == []
    _start_java({"spark.driver.memory": "2g", "spark.hadoop.fs.s3a.secret.key": Secret("hidden")})
    (conf,) = started
    assert conf.get("spark.driver.memory") == "2g"
    assert not conf.contains("spark.hadoop.fs.s3a.secret.key")


def test_the_packages_are_those_of_the_tests() -> None:
    assert set(_packages("iceberg").split(",")) <= set(SPARK.artifacts)
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}" in _packages("delta").split(",")


@pytest.mark.parametrize("found", ["4.0.0", "4.10.0", "4.2.0"])
def test_another_version_of_spark_is_refused(found: str) -> None:
    _check_version(pyspark.__version__)
    with pytest.raises(JobError, match=rf"need Spark 4\.1, and this is Spark {found}"):
        _check_version(found)


def test_the_environment_says_where_the_jars_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the demo: with jars to download besides, it would fail where they can't be."""
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert _class_path(None, {}, "group:name:1") == {"spark.jars.packages": "group:name:1"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 1g pyspark-shell")
    assert _class_path(None, {}, "group:name:1") == {"spark.jars.packages": "group:name:1"}
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    assert _class_path(None, {}, "group:name:1") == {}
