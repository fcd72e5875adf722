"""`python -m spark_jobs.sequence JOB … then JOB … then show PATH …`: run several commands one after another in one Spark session.

Starting a session takes longer than writing small tables. Each command has the arguments of `python -m spark_jobs` or of `python
-m spark_jobs.show`. The master and Spark's settings are those of the first command. After each command, its name and its duration
are printed as a JSON object. The first command that fails ends the sequence.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from spark_jobs import run, show

_THEN: Final = "then"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands, and return the exit status of the one that failed, or 0."""
    given = sys.argv[1:] if arguments is None else arguments
    for is_separator, command in groupby(given, _THEN.__eq__):
        if is_separator:
            continue
        name, *options = command
        started = time.monotonic()
        status = show.main(options) if name == "show" else run.main([name, *options])
        if status != 0:
            return status
        print(json.dumps({"command": name, "seconds": time.monotonic() - started}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
