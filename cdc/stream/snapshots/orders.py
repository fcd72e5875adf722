"""Orders to the running daemon: what a signal or an HTTP request asks for.

A signal is a record that anybody may have written who has the right to. So every value is checked, and what can't be carried out
becomes a `Refused` with the reason: nothing that a signal contains ends the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cdc.positions.requests import SignalPlace

SIGNAL_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a signal's value, in bytes."""
ID_MAX: Final = 200
_COLLECTIONS_MAX: Final = 1_000
FILTER_MAX: Final = 1_000
"""Maximum length of a filter, in characters."""
_MESSAGE_MAX: Final = 4_000
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter for the rows of some spaces: those that `spaces` selects, or all of the request."""

    spaces: str | None
    expression: str


@dataclass(frozen=True, slots=True)
class Order:
    """Something that the daemon is to do. `id` is the signal's, or one that the daemon has made."""

    id: str


@dataclass(frozen=True, slots=True)
class Execute(Order):
    """Publish all rows of these spaces again.

    `spaces` are names if they are `exact`, else regular expressions for names, or for names with the prefix of topics and a dot.
    """

    spaces: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Stop(Order):
    """Publish no more rows of these spaces, selected as by `Execute`; None: of all."""

    spaces: tuple[str, ...] | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Pause(Order):
    """Publish no rows of requests until `Resume`."""


@dataclass(frozen=True, slots=True)
class Resume(Order):
    """Continue after `Pause`."""


@dataclass(frozen=True, slots=True)
class Acknowledge(Order):
    """Say no more that these topics were deleted: no consumer needs what they have lost. Only over HTTP."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Log(Order):
    """Write a message to the log; `{}` in it stands for the position."""

    message: str


@dataclass(frozen=True, slots=True)
class Refused(Order):
    """A signal that can't be carried out, and the reason, as a sentence."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Received:
    """An order on its way to the pipeline. `place` is the place after a signal in its topic; None if it isn't a signal.

    Without an order, only the place is recorded: the daemon begins to read there.
    """

    order: Order | None
    place: SignalPlace | None = None


class _MistakeError(ValueError):
    """Something that a signal mustn't contain; the text is the sentence."""


def read_signal(prefix: str, key: bytes | None, value: bytes | None, default_id: str) -> Order:
    """Return the order that a record of the signal topic contains. `default_id` identifies a signal that has no id."""
    if key != prefix.encode():
        shown = "no key" if key is None else f"the key {_shown(key.decode(errors='replace'))}"
        return Refused(default_id, f"a signal has {shown}, and the daemon obeys those with the key {prefix!r}")
    if value is None or len(value) > SIGNAL_BYTES_MAX:
        size = "no value" if value is None else f"{len(value)} bytes"
        return Refused(default_id, f"a signal has {size}; it may have 1 to {SIGNAL_BYTES_MAX} bytes")
    identity = default_id
    try:
        content = _object(json.loads(value), "a signal")
        identity = _identity(content.get("id", default_id))
        return _order(identity, content)
    except _MistakeError as mistake:
        return Refused(identity, str(mistake))
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        return Refused(default_id, f"a signal isn't JSON: {_shown(str(error))}")


def _order(identity: str, content: dict[str, Any]) -> Order:
    type_, given = content.get("type"), content.get("data")
    make = _TYPES.get(type_) if isinstance(type_, str) else None
    if make is None:
        raise _MistakeError(f"the type of a signal is {_shown(type_)}; there are {', '.join(_TYPES)}")
    return make(identity, _object({} if given is None else given, 'the "data" of a signal'))


def _execute(identity: str, data: dict[str, Any]) -> Order:
    _check_kind(data)
    spaces = _texts(data, "data-collections")
    if not spaces:
        raise _MistakeError('the "data-collections" of execute-snapshot are missing')
    return Execute(identity, spaces, _conditions(data))


def _conditions(data: dict[str, Any]) -> tuple[Condition, ...]:
    found: list[Condition] = []
    for each in _list(data, "additional-conditions"):
        content = _object(each, 'one of the "additional-conditions"')
        found.append(Condition(_text(content.get("data-collection"), "data-collection"), _text(content.get("filter"), "filter")))
    if (single := data.get("additional-condition")) is not None:
        found.append(Condition(None, _text(single, "additional-condition")))
    return tuple(found)


def _stop(identity: str, data: dict[str, Any]) -> Order:
    _check_kind(data)
    return Stop(identity, _texts(data, "data-collections") or None)


def _log(identity: str, data: dict[str, Any]) -> Order:
    return Log(identity, _text(data.get("message"), "message"))


_TYPES: Final[dict[str, Callable[[str, dict[str, Any]], Order]]] = {
    "execute-snapshot": _execute,
    "stop-snapshot": _stop,
    "pause-snapshot": lambda identity, _: Pause(identity),
    "resume-snapshot": lambda identity, _: Resume(identity),
    "log": _log,
}


def _check_kind(data: dict[str, Any]) -> None:
    kind = data.get("type", "incremental")
    if not isinstance(kind, str) or kind.lower() != "incremental":
        raise _MistakeError(f'the "type" of the snapshot is {_shown(kind)}; the only one is "incremental"')


def _identity(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= ID_MAX or not is_unicode(value):
        raise _MistakeError(f'the "id" of a signal must be a text of 1 to {ID_MAX} characters')
    return value


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _MistakeError(f"{what} is {_shown(value)}, and must be an object")
    return value


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _COLLECTIONS_MAX:
        raise _MistakeError(f'"{name}" must be a list of at most {_COLLECTIONS_MAX} elements')
    return value


def _texts(data: dict[str, Any], name: str) -> tuple[str, ...]:
    return tuple(_text(each, name) for each in _list(data, name))


def _text(value: object, name: str) -> str:
    length_max = _MESSAGE_MAX if name == "message" else FILTER_MAX
    if not isinstance(value, str) or not 0 < len(value) <= length_max or not is_unicode(value):
        raise _MistakeError(f'"{name}" has {_shown(value)} in the place of a text of 1 to {length_max} characters')
    return value


def is_unicode(text: str) -> bool:
    """Return whether a text from JSON can be written: there, a half of a surrogate pair may stand alone (`"\\ud800"`)."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text[:_SHOWN] + "…") if len(text) > _SHOWN else repr(text)


def received(prefix: str, place: SignalPlace, offset: int, ts_ms: int, record: tuple[bytes | None, bytes | None]) -> Received:
    """Return what to do about the record at `offset`, the next one after `place`, given its timestamp, its key and value."""
    after = place.after(offset, ts_ms)
    if place.floor_ts_ms and ts_ms <= place.floor_ts_ms:
        return Received(None, after)
    return Received(read_signal(prefix, *record, default_id=f"{place.topic_id}:{offset}"), after)


def begin_at(known: SignalPlace | None, topic_id: str, ends: tuple[int, int], now_ms: int) -> tuple[SignalPlace, str]:
    """Return where to read the signal topic from, and a warning, or "". `ends` are its first offset and the next one.

    A daemon that has never read it obeys only signals from now on. The offset counts only in the same topic, as long as its
    records aren't lost: in another one with this name, a copy of the former one perhaps, the signals' timestamps decide which
    of them were taken.
    """
    low, high = ends
    if known is None:
        return SignalPlace(topic_id, high, now_ms), ""
    if known.topic_id == topic_id and known.offset <= high:
        if known.offset >= low:
            return known, ""
        lost = low - known.offset
        warning = f"{lost} records of the signal topic have expired, or were deleted, before the daemon could read them"
        return SignalPlace(topic_id, low, known.last_ts_ms, known.floor_ts_ms), warning
    # Whoever writes a signal chooses its timestamp: one in the future must not have the daemon ignore signals until then.
    newest_ms = min(known.last_ts_ms, now_ms)
    what = "was made anew" if known.topic_id != topic_id else "has lost its newest records"
    warning = f"the signal topic {what}: the daemon obeys its signals that are younger than the last one that it has taken"
    return SignalPlace(topic_id, low, newest_ms, newest_ms), warning
