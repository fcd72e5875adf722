"""Patterns of spaces.include and spaces.exclude that match no space, with a guess at what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cdc.events.topics import SpaceFilter
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import SchemaTracker

_NAMES_SHOWN: Final = 10


def without_space(include: Sequence[str], exclude: Sequence[str], spaces: Sequence[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Yield, for each pattern that matches no space, its list (`include` or `exclude`) and a sentence.

    `spaces` has ids and names.
    """
    names = own(spaces)
    for key, found in (("include", include), ("exclude", exclude)):
        for pattern in found:
            # Any pattern may exclude Tarantool's own spaces, but only a pattern that names them includes them.
            fits = SpaceFilter([pattern], []) if key == "include" else _Fits(pattern)
            if not any(fits(space_id, name) for space_id, name in spaces):
                yield key, f"{pattern!r} matches no space{_meant(pattern, names)}.{shown(names)}"


def doubts(include: list[str], exclude: list[str], stored: Iterable[StoredSpace], *, is_default: bool) -> Iterator[str]:
    """Yield sentences about patterns that match no space, and about there being no space to publish, for the checkpoint's spaces.

    If `include` `is_default`, nobody set it, so it is no mistake if it matches nothing.
    """
    spaces = [(form.space_id, form.name) for form in SchemaTracker(stored).forms() if form.is_replicated]
    for key, sentence in without_space([] if is_default else include, exclude, spaces):
        yield f"spaces.{key}: {sentence}"
    is_published = SpaceFilter(include, exclude)
    if not any(is_published(space_id, name) for space_id, name in spaces):
        yield f"no space is published.{shown(own(spaces), ' Correct spaces.include and spaces.exclude if some should be.')}"


def own(spaces: Sequence[tuple[int, str]]) -> list[str]:
    """Return the names of the spaces that aren't Tarantool's own."""
    is_own = SpaceFilter([".*"], [])
    return [name for space_id, name in spaces if is_own(space_id, name)]


def listed(names: Sequence[str]) -> str:
    """Return the names in order, as a list of limited length."""
    return ", ".join(sorted(names)[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")


def shown(names: Sequence[str], remedy: str = "") -> str:
    """Return a sentence that lists the spaces, to follow another sentence, and the remedy if there are any spaces."""
    return (
        f" The spaces are: {listed(names)}.{remedy}"
        if names
        else (
            " The server has no spaces of its own yet: create one, which a running daemon takes up, or check that "
            "source.uris names the right server."
        )
    )


class _Fits:
    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def __call__(self, _: int, name: str) -> bool:
        return self._pattern.fullmatch(name) is not None


def _meant(pattern: str, names: Sequence[str]) -> str:
    alike = difflib.get_close_matches(pattern, names, n=1, cutoff=0.7)
    if alike:
        return f"; {alike[0]!r} looks like it"
    inside = [name for name in names if re.search(pattern, name)]
    return f": a pattern has to match the whole name, as '.*{pattern}.*' would match {inside[0]!r}" if inside else ""
