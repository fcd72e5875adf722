"""Spark jobs that read the topics of tarantool-cdc. They share only its messages (docs/events.md) with the daemon."""

import sys
from importlib.util import find_spec

# `python -m` imports this package first. Without PySpark, the command's module would then fail with a bare ImportError.
if sys.argv[:1] == ["-m"] and find_spec("pyspark") is None:
    sys.exit("The Spark jobs need PySpark: pip install '.[spark]'")
