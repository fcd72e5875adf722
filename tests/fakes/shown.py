"""Events, rows and messages as lines of golden files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import msgspec

from cdc.positions.vclock import VClock
from cdc.protocol.constants import TYPE_NAMES, Key
from cdc.protocol.session import Event, SnapshotRows, StreamRows
from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes.golden import digest, line

_RUN_MAX: Final = 12
_KEY_NAMES: Final = {number: name.lower() for name, number in vars(Key).items() if isinstance(number, int)}

Item = tuple[object, Any, bytes]
"""What it belongs with, what to show of it, and its bytes."""


def value(item: Any) -> Any:
    """A decoded value as JSON that tells all types apart."""
    match item:
        case None | bool() | int():
            return item
        case float():
            return item if math.isfinite(item) else {"float": str(item)}
        case str():
            return item if _is_utf8(item) else {"not utf-8": item.encode("utf-8", "surrogateescape").hex()}
        case bytes():
            return {"bytes": item.hex()}
        case list():
            return [value(each) for each in item]
        case VClock():
            return str(item)
        case dict():
            if all(isinstance(key, str) for key in item):
                return {key: value(each) for key, each in item.items()}
            return {"map": [[value(key), value(each)] for key, each in item.items()]}
        case Decimal() | UUID():
            return {type(item).__name__.lower(): str(item)}
    return {type(item).__name__: repr(item)}


def _is_utf8(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


def body(item: dict[Any, Any]) -> dict[str, Any]:
    """A header or body with the names of its keys."""
    return {_KEY_NAMES.get(key, str(key)): value(each) for key, each in item.items()}


def events(stream: Iterable[Event]) -> Iterator[Item]:
    """One item per event, one per row of those that carry rows: how they were cut into batches doesn't show."""
    for event in stream:
        if isinstance(event, SnapshotRows | StreamRows):
            frames = event.frames
            for index, (header, row) in enumerate(zip(frames.headers, frames.bodies, strict=True)):
                head = {name: each for name, each in body(header).items() if name not in ("request_type", "sync")}
                kind = TYPE_NAMES[header[Key.REQUEST_TYPE]]
                shown = {type(event).__name__: kind, **head, **body(row)}
                yield (type(event), row.get(Key.SPACE_ID)), shown, frames.raw(index)
        else:
            yield event, _event(event), repr(event).encode()


def _event(event: Event) -> dict[str, Any]:
    fields = {name: getattr(event, name) for name in type(event).__dataclass_fields__}
    shown = {
        name: body_of(each) if hasattr(each, "__dataclass_fields__") else value(list(each) if isinstance(each, tuple) else each)
        for name, each in fields.items()
    }
    return {"event": type(event).__name__, **shown}


def body_of(item: Any) -> dict[str, Any]:
    """A dataclass as a map of its fields."""
    return {
        name: value(list(each) if isinstance(each, tuple) else each)
        for name in item.__dataclass_fields__
        for each in (getattr(item, name),)
    }


def messages(stream: Sequence[Message | Broadcast]) -> Iterator[Item]:
    """One item per message, its key and value as they are."""
    for message in stream:
        if isinstance(message, Broadcast):
            yield message.topic, {"every partition of": message.topic, "value": json.loads(message.value)}, message.value
        else:
            topic, key, content = message
            shown = {
                "topic": topic,
                "key": None if key is None else json.loads(key),
                "value": None if content is None else json.loads(content),
            }
            yield topic, shown, msgspec.json.encode([topic, key, content])


def lines(items: Iterable[Item]) -> list[str]:
    """Items as lines; of a long run of the same kind the middle is one line with a digest."""
    found: list[str] = []
    for _, group in groupby(items, key=lambda item: item[0]):
        run = list(group)
        if len(run) > _RUN_MAX:
            middle = run[3:-1]
            found += [line(shown) for _, shown, _ in run[:3]]
            found.append(line({"and": len(middle), "sha256": digest(b"".join(data for _, _, data in middle))}))
            run = run[-1:]
        found += [line(shown) for _, shown, _ in run]
    return found
