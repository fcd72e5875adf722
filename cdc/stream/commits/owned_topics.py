"""The topics that belong to a prefix, according to its schema topic.

A name doesn't tell whose a topic is: `shop.eu.users` may belong to the prefix `shop` (space `eu.users`) or to `shop.eu` (space
`users`), and a mirrored topic has a name that its daemon doesn't know. Therefore the schema topic decides. Its records have the
owner in `source.name`, and name every space that was ever published, also under its former names. A record precedes the first
event of its space. Where rules for topics give a space's topic another name, `topic` in the record has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from cdc.events.topics import suffix_of


class Owned(NamedTuple):
    """The owner of a prefix, None if the schema topic names none, and the names of the spaces' topics without the prefix."""

    name: str | None
    suffixes: frozenset[str]


NOTHING: Final = Owned(None, frozenset())


class _TableChange(msgspec.Struct):
    id: str
    topic: str | None = None
    previousId: str | None = None  # noqa: N815 - the record's name for it


class _Source(msgspec.Struct):
    name: str


class _SchemaRecord(msgspec.Struct):
    source: _Source
    tableChanges: list[_TableChange]  # noqa: N815 - the record's name for it


_decode: Final = msgspec.json.Decoder(_SchemaRecord).decode


def owned(prefix: str, records: Iterable[bytes]) -> Owned:
    """Return what the values of a prefix's schema topic say.

    The owner's name is the prefix, unless the topics were renamed while they were copied. What isn't a record of the owner says
    nothing.
    """
    found: dict[str, set[str]] = {}
    last: str | None = None
    for value in records:
        try:
            record = _decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if record.tableChanges:
            last = record.source.name
            spaces = found.setdefault(last, set())
            for change in record.tableChanges:
                if change.topic is not None:
                    spaces.add(change.topic)
                    continue
                spaces.update(suffix_of(quoted[1:-1]) for quoted in (change.id, change.previousId) if quoted is not None)
    if last is None:
        return NOTHING
    name = prefix if prefix in found else last
    return Owned(name, frozenset(found[name]))
