"""Spark jobs over the topics of tarantool-cdc. They share nothing with the daemon but its messages (docs/events.md)."""

import sys
from importlib.util import find_spec

# While `python -m` looks for one of the package's commands, and before that one imports what isn't there.
if sys.argv[:1] == ["-m"] and find_spec("pyspark") is None:
    sys.exit("The Spark jobs need PySpark: pip install '.[spark]'")
