"""The code uses the words of docs/glossary.md: each has one meaning there, and other words for the same thing are banned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent

BANNED: Final = {
    # word: (what to write, where it is right)
    r"re-?play": ("catch-up", r"cdc/cli|cdc/commands/run|cdc/daemon/file_source|cdc/errors|cdc/feeds/tap/"),
    r"backfill": ("snapshot, or the job's first run", r"cdc/(?!kafka/|images/|schema/|tuples/|protocol/)"),
    r"confirmed": ("committed, or seen", r"cdc/(?!kafka/|stream/commits/)|spark_jobs/"),
    r"resync": ("snapshot, or catch-up", ""),
    r"slave": ("replica", ""),
    r"binlog|oplog": ("log, or .xlog", ""),
    r"row image": ("image", ""),
    r"side ?car|sanity|whitelist|blacklist": ("a plain word", ""),
}
"""Words that the glossary gives another meaning, or has another word for."""


@pytest.mark.parametrize("word", BANNED)
def test_words_of_the_glossary_mean_what_it_says(word: str) -> None:
    instead, where = BANNED[word]
    banned = re.compile(rf"(?:^|[^a-z])(?:{word})", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("cdc", "spark_jobs")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".rs") and not (where and re.match(where, str(path.relative_to(ROOT))))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(line)
    ]
    assert found == [], f"write {instead}"


def test_the_words_that_are_meant_are_in_the_glossary() -> None:
    terms = (ROOT / "docs" / "glossary.md").read_text()
    for term in ("| catch-up |", "| replay |", "| backfill |", "| confirmed |"):
        assert term in terms
