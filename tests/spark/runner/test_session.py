"""The settings with which a job starts its own Spark session, the garbage collector among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkConf, SparkContext

from spark_jobs.runner.options import Secret
from spark_jobs.runner.session import _COLLECTOR, _JAVA_VARIABLES, _collector, _start_java

_OTHER = "-Xss4m -XX:+UseZGC"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in _JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_the_one_that_takes_least_cpu() -> None:
    assert _collector({}) == {"spark.driver.defaultJavaOptions": _COLLECTOR}


@pytest.mark.parametrize("name", _JAVA_VARIABLES)
def test_one_that_the_environment_chooses_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, _OTHER)
    assert _collector({}) == {}


def test_one_that_a_setting_chooses_stays() -> None:
    assert _collector({"spark.driver.extraJavaOptions": _OTHER}) == {}


def test_one_that_the_settings_of_spark_choose_stays(nothing_chosen: Path) -> None:
    nothing_chosen.write_text(f"spark.driver.extraJavaOptions {_OTHER}\n")
    assert _collector({}) == {}


def test_options_in_its_place_stay(nothing_chosen: Path) -> None:
    nothing_chosen.write_text("spark.driver.defaultJavaOptions -Dcompany=here\n")
    assert _collector({}) == {}


def test_other_options_of_java_choose_none(monkeypatch: pytest.MonkeyPatch, nothing_chosen: Path) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseStringDeduplication -Xmx1g")
    nothing_chosen.write_text("spark.driver.memory 2g\n")
    assert _collector({"spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError"}) != {}


def test_secrets_are_not_in_java_s_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[SparkConf] = []
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda *, conf: started.append(conf))
    _start_java({"spark.driver.memory": "2g"})
    assert started == []
    _start_java({"spark.driver.memory": "2g", "spark.hadoop.fs.s3a.secret.key": Secret("hidden")})
    (conf,) = started
    assert conf.get("spark.driver.memory") == "2g"
    assert not conf.contains("spark.hadoop.fs.s3a.secret.key")
