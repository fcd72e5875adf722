"""Libraries that only some jobs need, and only once they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_jobs.errors import JobError


@contextmanager
def needs(library: str) -> Iterator[None]:
    """Imports within fail with a JobError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise JobError(
            f"This job needs {library}, here and on every worker (there is no module {error.name}): pip install '.[spark,feeds]'."
        ) from error
