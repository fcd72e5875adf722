"""DuckDB's reader of Iceberg tables, which knows nothing of Spark."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb


def rows(query: str, *values: str) -> list[tuple[Any, ...]]:
    """The rows of a query, which may use iceberg_scan."""
    # The extensions come from PyPI, with the version that the lock names, and aren't signed as DuckDB's own server does it.
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        (file,) = Path(next(iter(spec.submodule_search_locations))).glob("**/*.duckdb_extension")
        connection.load_extension(str(file))
    return connection.execute(query, list(values)).fetchall()
