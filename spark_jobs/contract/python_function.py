"""Functions of columns that Spark's workers run in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - its customary name


def python_function(function: Callable[..., Any], returns: str) -> Any:
    """Return a function of columns that calls this one for each row. `returns` is the Spark type of its results."""
    # If this isn't said, PySpark looks at annotations, packages and settings, and may then pass values through Arrow, which
    # converts some of them differently. It also warns about each function that it can't tell anything about.
    return F.udf(function, returns, useArrow=False)
