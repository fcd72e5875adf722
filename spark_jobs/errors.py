"""The one error that a job ends with when an operator has to act."""

from __future__ import annotations

import re
from typing import Final

_WORKER_ERROR: Final = re.compile(r"^spark_jobs\.errors\.JobError: (.+)$", re.MULTILINE)
_RAISED_ERROR: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


class JobError(Exception):
    """What is wrong, and what to do about it, in sentences."""


def sentence(error: BaseException) -> str:
    """The sentence of a JobError, also of one that came back from a Spark worker inside Java's stack traces."""
    if isinstance(error, JobError):
        return str(error)
    text = str(error)
    found = _WORKER_ERROR.search(text) or _RAISED_ERROR.search(text)
    return found[1] if found else text
