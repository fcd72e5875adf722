"""The two forms in which `watch` writes events: JSON lines for programs, and lines for people.

    14:03:22.123 ┌ + users   1  name "Ann" · balance 10
                 └ ~ orders  7  state "new" → "paid"
    14:03:23.001   - users   1  name "Ann" · balance 10
      master's time  operation, space, key, row

A line for people shows a row's fields without those of its key, and of an update only what has changed. It is cut at the
terminal's width. Characters that a terminal would obey are shown as in JSON.

Pure: messages in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

from cdc.errors import printable
from cdc.events.envelope import OPEN_DELETE, OPEN_PATCH
from cdc.events.topics import DLQ, SCHEMA, SpaceNames
from cdc.stream.batches.batch import Broadcast, Message

_NAMES: Final = SpaceNames("")
_SCHEMA_RECORDS: Final = _NAMES.control(SCHEMA)
_REFUSED_ROWS: Final = _NAMES.control(DLQ)
_CONTROL: Final = "\0"
_WITHOUT_ROW: Final = (OPEN_DELETE, OPEN_PATCH)
"""Openings of events whose row only the key identifies."""

_SPACE_CELLS_MAX: Final = 24
"""Width of the column for spaces' names, at most; it grows with the names."""

Segment = tuple[str, str]
"""A style, and the text that has it."""

_RESET: Final = "\x1b[0m"
_STYLES: Final = {
    "": "",
    "dim": "\x1b[2m",
    "key": "\x1b[36m",
    "space": "\x1b[1m",
    "new": "\x1b[32m",
    "old": "\x1b[31m",
    "c": "\x1b[1;32m",
    "u": "\x1b[1;33m",
    "d": "\x1b[1;31m",
    "t": "\x1b[1;35m",
    "r": "\x1b[34m",
    "schema": "\x1b[1;36m",
}


class Glyphs(NamedTuple):
    """Characters that not every terminal has."""

    first: str = "┌"
    middle: str = "│"
    last: str = "└"
    becomes: str = "→"
    between: str = "·"
    cut: str = "…"
    row: str = "•"
    schema: str = "◆"


ASCII_GLYPHS: Final = Glyphs("/", "|", "\\", "->", "|", "..", "=", "*")


def glyphs_for(encoding: str) -> Glyphs:
    """Return the characters for an output's encoding."""
    try:
        "".join(Glyphs()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII_GLYPHS
    return Glyphs()


def refused_rows(messages: Iterable[Message | Broadcast]) -> Iterator[str]:
    """Yield a sentence for each row that has no event, because it can't be shown or applied."""
    for message in messages:
        if not isinstance(message, Broadcast) and message[0] == _REFUSED_ROWS and message[2] is not None:
            letter = json.loads(message[2])
            yield f"a row can't be shown (space id {letter['space_id']}, {letter['type']}): {letter['error']}"


def json_lines(messages: Iterable[Message | Broadcast]) -> bytes:
    """Return the events' values, one a line. If an event has no row, its line begins with the key, as `"key"`."""
    lines = []
    for message in messages:
        if isinstance(message, Broadcast):
            lines.append(message.value)
            continue
        topic, key, value = message
        if value is None or topic.startswith(_CONTROL):
            continue
        lines.append(b'{"key":%b,%b' % (key, value[1:]) if value.startswith(_WITHOUT_ROW) and key else value)
    lines.append(b"")
    return b"\n".join(lines)


class TextLines:
    """Maker of the lines for people."""

    def __init__(self, glyphs: Glyphs, *, has_colour: bool, width: Callable[[], int | None], spaces: Iterable[str] = ()) -> None:
        """`width` returns the number of cells at which to cut a line now, None for whole lines.

        The column of spaces' names is as wide as those of `spaces`, which are expected.
        """
        self._glyphs = glyphs
        self._has_colour = has_colour
        self._width = width
        self._space_cells = min(max((cell_len(printable(name)) for name in spaces), default=0), _SPACE_CELLS_MAX)
        self._last_time = ""
        # Transaction of the last event, when the batch may have ended within it.
        self._open: str | None = None

    def __call__(self, messages: Iterable[Message | Broadcast], *, is_whole: bool = True) -> str:
        """Return the lines for a batch's messages. `is_whole`: the last transaction ends with them."""
        events = [event for message in messages if (event := _event(message)) is not None]
        width = self._width()
        gutters = self._gutters([event.transaction for event in events], is_whole=is_whole)
        lines = [self._line(event, gutter, width) for event, gutter in zip(events, gutters, strict=True)]
        lines.append("")
        return "\n".join(lines)

    def _gutters(self, transactions: Sequence[str | None], *, is_whole: bool) -> Iterator[str]:
        """Yield the mark that shows which events are one transaction's."""
        glyphs, before = self._glyphs, self._open
        if transactions or is_whole:
            self._open = None if is_whole else transactions[-1]
        for own, after in zip(transactions, [*transactions[1:], self._open], strict=False):
            continues, goes_on = own is not None and own == before, own is not None and own == after
            if continues:
                yield glyphs.middle if goes_on else glyphs.last
            else:
                yield glyphs.first if goes_on else " "
            before = own

    def _line(self, event: _Event, gutter: str, width: int | None) -> str:
        time = _clock_time(event.timestamp_ms) if event.timestamp_ms is not None else ""
        shown_time = time if time != self._last_time else ""
        self._last_time = time or self._last_time
        space = printable(event.space)
        self._space_cells = min(max(self._space_cells, cell_len(space)), _SPACE_CELLS_MAX)
        mark, style = self._mark(event.op)
        segments: list[Segment] = [
            ("dim", f"{shown_time:12} {gutter} "),
            (style, f"{mark} "),
            ("space", space + " " * (self._space_cells - cell_len(space))),
        ]
        if event.key:
            segments.append(("key", f"  {event.key}"))
        segments.append(("", "  "))
        segments += self._row(event)
        return self._painted(_cut(segments, width, self._glyphs.cut))

    def _mark(self, op: str) -> Segment:
        glyphs = self._glyphs
        marks = {"c": "+", "u": "~", "d": "-", "t": "x", "r": glyphs.row, "schema": glyphs.schema}
        return marks.get(op, "?"), op if op in _STYLES else ""

    def _row(self, event: _Event) -> Iterator[Segment]:
        """Yield what the line says about the row."""
        match event.op:
            case "t":
                yield "t", "all rows are gone"
            case "schema":
                yield "", event.sentence
            case "d":
                yield from self._fields(event, event.before, "dim")
            case "u" if event.patch is not None:
                yield from self._patch(event.patch)
                if event.upsert is not None:
                    yield "dim", f" {self._glyphs.between} or insert "
                    yield from self._fields(event, event.upsert, "")
            case "u" if event.before is not None and event.after is not None:
                yield from self._difference(event.before, event.after)
            case _:
                yield from self._fields(event, event.after, "")

    def _fields(self, event: _Event, row: Mapping[str, Any] | None, style: str) -> Iterator[Segment]:
        shown = {name: value for name, value in (row or {}).items() if name not in event.key_names}
        for place, (name, value) in enumerate(shown.items()):
            yield "dim", f"{f' {self._glyphs.between} ' if place else ''}{printable(name)} "
            yield style, _text(value)

    def _difference(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Segment]:
        names = [name for name in {**before, **after} if before.get(name, _ABSENT) != after.get(name, _ABSENT)]
        if not names:
            yield "dim", "(nothing has changed)"
        for place, name in enumerate(names):
            yield "dim", f"{f' {self._glyphs.between} ' if place else ''}{printable(name)} "
            yield "old", _text(before[name]) if name in before else "(none)"
            yield "dim", f" {self._glyphs.becomes} "
            yield "new", _text(after[name]) if name in after else "(none)"

    def _patch(self, operations: Sequence[Mapping[str, Any]]) -> Iterator[Segment]:
        for place, operation in enumerate(operations):
            rest = [_text(value) for name, value in operation.items() if name not in ("op", "field", "path")]
            field = f"{operation.get('field')}{operation.get('path', '')}"
            yield "dim", f"{f' {self._glyphs.between} ' if place else ''}{printable(field)} "
            yield "new", " ".join([str(operation.get("op")), *rest])

    def _painted(self, segments: Iterable[Segment]) -> str:
        if not self._has_colour:
            return "".join(text for _, text in segments).rstrip()
        return "".join(f"{_STYLES[style]}{text}{_RESET}" if _STYLES[style] else text for style, text in segments)


_ABSENT: Final = object()
"""Stands for a field that a row doesn't have: null is a value."""


class _Event(NamedTuple):
    """What a line shows of an event, or of a schema record."""

    op: str
    space: str
    transaction: str | None
    timestamp_ms: int | None
    key: str = ""
    key_names: frozenset[str] = frozenset()
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    patch: Sequence[Mapping[str, Any]] | None = None
    upsert: Mapping[str, Any] | None = None
    sentence: str = ""


def _event(message: Message | Broadcast) -> _Event | None:
    """Return what to show of a message; None for records that only consumers of topics need."""
    topic, key, value = (message.topic, None, message.value) if isinstance(message, Broadcast) else message
    if value is None or (topic.startswith(_CONTROL) and topic != _SCHEMA_RECORDS):
        return None
    found = json.loads(value)
    source = found["source"]
    is_streamed = source["snapshot"] == "false"
    if topic == _SCHEMA_RECORDS:
        # A snapshot's records name every space that exists, which is no news. The time of others is that of their making.
        return _Event("schema", source["table"], None, None, sentence=_news(found)) if is_streamed else None
    names = json.loads(key) if key else {}
    parts = [_text(part) for part in names.values()]
    return _Event(
        found["op"],
        source["table"],
        found["transaction"]["id"] if found.get("transaction") else None,
        source["ts_ms"] if is_streamed else None,
        parts[0] if len(parts) == 1 else f"({', '.join(parts)})" if parts else "",
        frozenset(names),
        found["before"],
        found["after"],
        found.get("patch"),
        found.get("upsert"),
    )


def _news(record: Mapping[str, Any]) -> str:
    """Return what a schema record says."""
    (change,) = record["tableChanges"]
    table = change["table"]
    if table is None:
        return "the space is gone"
    columns = ", ".join(
        f"{printable(column['name'])} {printable(column['typeName'])}{'?' if column['optional'] else ''}"
        for column in table["columns"]
    )
    former = f", formerly {printable(change['previousId'][1:-1])}" if "previousId" in change else ""
    what = "new space" if change["type"] == "CREATE" else "new form"
    return f"{what}{former}: {columns or 'no format'}; key {printable(', '.join(table['primaryKeyColumnNames']))}"


def _clock_time(timestamp_ms: int) -> str:
    """Return the local time of day of a time in milliseconds since the epoch."""
    return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]


def _text(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def _cut(segments: Iterable[Segment], width: int | None, mark: str) -> Iterator[Segment]:
    """Yield the segments up to this number of cells; if they have more, with a mark at the end."""
    if width is None:
        yield from segments
        return
    kept = list(segments)
    if sum(cell_len(text) for _, text in kept) <= width:
        yield from kept
        return
    left = width - cell_len(mark)
    for style, text in kept:
        if cell_len(text) > left:
            end = 0
            while cell_len(text[: end + 1]) <= left:
                end += 1
            yield style, text[:end]
            break
        yield style, text
        left -= cell_len(text)
    yield "dim", mark
