"""The pages that are made from the code are as the code is, and links in all of them lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.fakes import drawings, pages
from tests.fakes.golden import Golden
from tests.fakes.marked import DOCS

ROOT: Final = DOCS.parent
README_BYTES_MAX: Final = 9_216
CHANGELOG_BYTES_MAX: Final = 10_240
"""What a user meets, and no more: the rest is in git."""
LINE_CHARACTERS_MAX: Final = 140
PAGES: Final = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md"), *DOCS.glob("*.md")]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("configuration.md", pages.configuration),
        ("metrics.md", pages.metrics),
        ("connection-states.md", drawings.connection),
        ("publisher-states.md", drawings.publisher),
        ("starts.md", drawings.starts),
    ],
)
def test_made_from_the_code(name: str, lines: Callable[[], Iterator[str]], golden: Golden) -> None:
    golden.check_lines(DOCS / name, list(lines()))


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as those who show Markdown make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_what_contributors_are_sent_to_is_there() -> None:
    """Of paths from the top: a file that moves takes its name here along."""
    named = set(re.findall(r"`((?:cdc|docs|spark_jobs|tests)/[\w./-]+)`", (ROOT / ".github" / "CONTRIBUTING.md").read_text()))
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES_MAX


def test_the_changelog_is_short() -> None:
    assert len((ROOT / "CHANGELOG.md").read_bytes()) <= CHANGELOG_BYTES_MAX


def test_lines_of_the_page_on_spark_fit_a_terminal() -> None:
    """But for tables, whose rows Markdown can't divide."""
    lines = enumerate((DOCS / "spark.md").read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > LINE_CHARACTERS_MAX and not line.startswith("|")] == []
