"""Golden files: what came out once and was read by a person, compared with what comes out now.

`pytest --update-golden` writes them anew instead of comparing; the difference is then git's to show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
_TEXT_MAX: Final = 200


class Golden:
    """Compares texts with files, or writes the files."""

    def __init__(self, *, is_updating: bool) -> None:
        self.is_updating = is_updating

    def check_lines(self, path: Path, lines: Iterable[str]) -> None:
        """The file must hold exactly these lines."""
        self.check(path, "".join(f"{line}\n" for line in lines))

    def check(self, path: Path, text: str) -> None:
        """The file must hold exactly this text."""
        if self.is_updating:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        where = path.relative_to(ROOT.parent)
        assert path.exists(), f"{where} is missing; --update-golden writes it"
        expected = path.read_text()
        # Lines compare first: pytest then shows the one that differs.
        for number, (now, then) in enumerate(zip(text.splitlines(), expected.splitlines(), strict=False), 1):
            assert now == then, f"{where}:{number} differs; if the new line is right, --update-golden writes it"
        assert text == expected, f"{where} has another length; if the new one is right, --update-golden writes it"


@pytest.fixture(name="golden")
def golden_fixture(pytestconfig: pytest.Config) -> Golden:
    """Of this run."""
    return Golden(is_updating=bool(pytestconfig.getoption("--update-golden")))


def line(value: Any) -> str:
    """One value as a line of JSON that a person can read: long texts are cut, with a digest of what was cut."""
    return json.dumps(_shortened(value), ensure_ascii=False, separators=(",", ":"))


def digest(data: bytes) -> str:
    """Stands for bytes that are too many to be shown."""
    return hashlib.sha256(data).hexdigest()[:16]


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= _TEXT_MAX:
            return value
        return f"{value[:40]}… ({len(value)} characters, sha256 {digest(value.encode('utf-8', 'surrogateescape'))})"
    if isinstance(value, list | tuple):
        return [_shortened(item) for item in value]
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return value
