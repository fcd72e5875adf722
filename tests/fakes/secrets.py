"""Where a secret might come out: all that an error tells."""

from __future__ import annotations

import traceback
from collections.abc import Iterator


def told(error: BaseException) -> Iterator[str]:
    """All texts of an error and of those behind it, shown or not."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None:
            continue
        yield str(current)
        yield repr(current)
        yield repr(vars(current))
        yield "".join(traceback.format_exception(current))
        waiting += [current.__cause__, current.__context__]
