"""What jobs print, with names in any script, and on a stderr that can't be written. No Spark is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

NAME = "заказы é 😀 \udc80"
PRINTS = f"""
from spark_jobs.runner.output import prepare, tell
prepare()
tell({NAME!r})
print({json.dumps({"path": NAME}, ensure_ascii=False)!r})
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_the_encoding_lacks(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    run = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, timeout=60, check=True, env=environment)
    assert json.loads(run.stdout.decode(encoding)) == {"path": NAME}
    assert run.stderr.endswith(b"\\udc80\n")


def test_a_stderr_that_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-c", PRINTS], stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    assert run.returncode == 0
    assert run.stdout
