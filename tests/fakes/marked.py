"""Pages of docs/ whose beginning a person wrote, and whose rest is made from the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
MARK: Final = "<!-- made from the code: pytest tests/test_docs.py --update-golden -->"


def first_lines(page: str) -> Iterator[str]:
    """What a person wrote: the page up to the mark."""
    for line in (DOCS / page).read_text().splitlines():
        if line == MARK:
            return
        yield line
