"""The arguments with which a local Spark job starts."""

from __future__ import annotations

import pytest

from cdc.local.spark import spark_submit_arguments


@pytest.mark.spark
def test_the_arguments_stand_before_a_program() -> None:
    arguments = spark_submit_arguments()
    assert arguments[0] == "--master"
    assert len(arguments) % 2 == 0
