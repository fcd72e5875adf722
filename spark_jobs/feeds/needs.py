"""Libraries that only some jobs need, imported when these jobs run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_jobs.errors import JobError


@contextmanager
def needs(library: str) -> Iterator[None]:
    """Turn a failed import within the context into a JobError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise JobError(
            f"This job needs {library}, here and on every worker (there is no module {error.name}): pip install '.[spark,feeds]'."
        ) from error
