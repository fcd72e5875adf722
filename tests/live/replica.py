"""A copy of the master made from the topics alone, and its comparison with the master's own contents.

The fold follows docs/events.md and nothing else; what an UPDATE does to a row is what the Spark jobs' own code makes of a
patch, so a difference is a fault of the daemon, of the jobs, or of the contract between them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

from cdc.local.interface import TarantoolServer
from spark_jobs.contract import patch
from spark_jobs.contract.forms import Form, Forms
from tests.live import values
from tests.live.stream import Event, Stream

Row = list[Any]
SameKeys = dict[tuple[str, str], str]
"""Texts of keys that have a collation, by space and text: the first text that is the same key to the server."""

SPACES = """
local found = {}
for _, row in box.space._space:pairs({512}, {iterator = 'GE'}) do
    local space = box.space[row.id]
    if not space.is_local and not space.temporary and space.index[0] ~= nil then
        table.insert(found, {row.id, row.name})
    end
end
return found
"""
# For each key the place of the first one that is the same to the space's primary key.
SAME = """
local name, keys = ...
local part = box.space[name].index[0].parts[1]
local order = require('key_def').new({{fieldno = 1, type = part.type, collation = part.collation}})
local firsts = {}
for place, key in ipairs(keys) do
    local first = 1
    while order:compare({keys[first]}, {key}) ~= 0 do first = first + 1 end
    firsts[place] = first
end
return firsts
"""
ROWS = "local rows = {} for _, row in box.space[...]:pairs() do table.insert(rows, row) end return rows"


class Replica:
    """The rows of all spaces, by space id and by the text of the key."""

    def __init__(self, forms: Forms, same_keys: SameKeys, *, has_images: bool = False) -> None:
        self._has_images = has_images
        self._same_keys = same_keys
        self._forms = forms
        self._rows: dict[int, dict[str, Row]] = {}
        # The last event of each row, which decides what a snapshot sweeps.
        self._seqs: dict[int, dict[str, int]] = {}
        self._form_by_space: dict[int, Form] = {}
        self.space_names: dict[int, str] = {}

    def rows(self, space_id: int) -> list[Row]:
        """What the space holds."""
        return list(self._rows.get(space_id, {}).values())

    def filled(self) -> set[int]:
        """The spaces that hold anything."""
        return {space_id for space_id, rows in self._rows.items() if rows}

    def apply(self, event: Event) -> None:
        """Take one event. Raises AssertionError if it contradicts what was before."""
        space_id, value = event.space_id, event.value
        where = f"seq {event.seq} ({event.source['table']})"
        if event.op == "t":
            self._rows[space_id], self._seqs[space_id] = {}, {}
            return
        form = self._forms.of(space_id, event.source["schema_version"])
        self._turn_to(form)
        rows, seqs = self._rows.setdefault(space_id, {}), self._seqs.setdefault(space_id, {})
        key = event.key
        assert key is not None, where
        written = self._same(json.loads(key), form)
        identity = _text(written)
        if self._has_images and form.collated:
            # Its events are those of images = "none" all the same (docs/events.md).
            assert value["before"] is None, f"{where} has no images, and the before {value['before']}"
        elif self._has_images:
            there = rows.get(identity)
            told = None if value["before"] is None else _values(value["before"], form)
            if event.op in "ud":
                assert told is not None, f"{where}: {event.op} of {key} without a before"
                assert told == there, f"{where}: before is {told} and was {there}"
            assert "patch" not in value, where
        match event.op:
            case "r" | "c":
                if event.op == "c":
                    assert identity not in rows, f"{where} inserts {key}, which is there"
                rows[identity] = _values(value["after"], form)
            case "u" if "patch" not in value:
                rows[identity] = _values(value["after"], form)
            case "u" if "upsert" in value:
                row = rows.get(identity)
                inserted = _values(value["upsert"], form)
                rows[identity] = inserted if row is None else patch.upsert(row, value["patch"], form, _version(event))
            case "u" if identity in rows:
                rows[identity] = patch.update(rows[identity], value["patch"], form, _version(event))
            case "u":
                return  # the server logs an UPDATE that found nothing, as it does a DELETE
            case "d":
                rows.pop(identity, None)
                seqs.pop(identity, None)
                return
            case _:
                raise AssertionError(f"{where} has op {event.op}")
        seqs[identity] = event.seq
        built = patch.key_of(rows[identity], form)
        is_key = built is not None and _is_key(written, self._same(built, form))
        assert is_key, f"{where}: the row {rows[identity]} isn't under {key}"

    def sweep(self, spaces: Iterable[dict[str, Any]]) -> None:
        """A snapshot is complete: what it should have repeated and didn't is gone from the master."""
        for space in spaces:
            seqs = self._seqs.get(space["space_id"], {})
            for identity in [identity for identity, seq in seqs.items() if seq <= space["sweep_seq"]]:
                del seqs[identity], self._rows[space["space_id"]][identity]

    def _turn_to(self, form: Form) -> None:
        """The key's fields may have other names now, or be others."""
        before = self._form_by_space.get(form.space_id)
        self._form_by_space[form.space_id] = form
        if before is None or before == form:
            return
        rows, seqs = self._rows.get(form.space_id, {}), self._seqs.get(form.space_id, {})
        moved = {identity: _text(self._same(patch.key_of(row, form) or {}, form)) for identity, row in rows.items()}
        self._rows[form.space_id] = {moved[identity]: row for identity, row in rows.items()}
        self._seqs[form.space_id] = {moved[identity]: seq for identity, seq in seqs.items()}

    def _same(self, key: dict[str, Any], form: Form) -> dict[str, Any]:
        """The first of the texts that are this key to the server, where it has a collation."""
        if not form.collated:
            return key
        return {name: self._same_keys.get((form.space, text := _string(part)), text) for name, part in key.items()}


def fold(
    stream: Stream,
    events: Iterable[Event] | None = None,
    *,
    has_images: bool = False,
    tarantool: TarantoolServer | None = None,
) -> Replica:
    """Replay a stream from its beginning. If it `has_images`, each must be what the events before it make.

    Keys with a collation, which only a server can compare, are those of this `tarantool`.
    """
    forms = Forms("schema", [json.dumps(value) for value in stream.control["schema"]])
    same_keys = {} if tarantool is None else _same_keys(stream.events, forms, tarantool)
    replica = Replica(forms, same_keys, has_images=has_images)
    # Completions in the order of seq; each says how far the count was when it was written.
    completions = [(record["seq"], record["spaces"]) for record in stream.control["snapshot"] if record["status"] == "COMPLETED"]
    for event in stream.events if events is None else events:
        while completions and completions[0][0] < event.seq:
            replica.sweep(completions.pop(0)[1])
        replica.apply(event)
    for _, spaces in completions:
        replica.sweep(spaces)
    return replica


def compare(replica: Replica, tarantool: TarantoolServer) -> dict[str, int]:
    """Hold that the replica is the master, row by row, and return the rows by space. Raises AssertionError.

    The master must be at rest.
    """
    (spaces,) = tarantool.eval(SPACES)
    counts: dict[str, int] = {}
    differences: list[str] = []
    for space_id, name in spaces:
        (stored,) = values.decode(tarantool.eval_raw(ROWS, space_id))
        expected = {values.text(row) for row in stored}
        found = {values.text(row) for row in replica.rows(space_id)}
        counts[name] = len(stored)
        for kind, rows in (("lacks", expected - found), ("has, and the master hasn't,", found - expected)):
            if rows:
                differences.append(f"{name} {kind} {len(rows)} of {len(stored)} rows: {sorted(rows)[0]:.500}")
    strangers = replica.filled() - {space_id for space_id, _ in spaces}
    if strangers:
        differences.append(f"the replica has spaces that the master hasn't: {strangers}")
    assert not differences, "\n".join(differences)
    return counts


def _same_keys(events: Iterable[Event], forms: Forms, tarantool: TarantoolServer) -> SameKeys:
    """Ask the server. A space that is dropped must have a successor with its name and collation."""
    texts: dict[str, dict[str, str]] = {}
    for event in events:
        if event.key is None:
            continue
        form = forms.of(event.space_id, event.source["schema_version"])
        if form.collated:
            (part,) = json.loads(event.key).values()
            texts.setdefault(form.space, {})[_string(part)] = _sent(part)
    same: SameKeys = {}
    for space, sent_by_text in texts.items():
        shown = list(sent_by_text)
        (firsts,) = tarantool.eval(SAME, space, list(sent_by_text.values()))
        same |= {(space, text): shown[first - 1] for text, first in zip(shown, firsts, strict=True)}
    return same


def _string(part: Any) -> str:
    """The text in a row of a string that is a part of a key."""
    return str(part["string"] if isinstance(part, dict) else part)


def _sent(part: Any) -> str:
    """The string itself; bytes that aren't UTF-8 are surrogates."""
    return base64.b64decode(part["string"]).decode("utf-8", "surrogateescape") if isinstance(part, dict) else str(part)


def _is_key(key: dict[str, Any], built: dict[str, Any]) -> bool:
    """Whether a row of which the jobs build a key may be under another one: without a format they can't tell decimals."""
    return list(key) == list(built) and all(map(_is_same, key.values(), built.values()))


def _is_same(part: Any, built: Any) -> bool:
    if isinstance(part, dict):
        (part,) = part.values()  # in a scalar: its type and what it is
    if isinstance(part, str) and part.startswith("NaN("):
        part = "NaN"  # in a HASH index with its bits, which a row doesn't tell
    if type(part) is type(built) and part == built and isinstance(part, int | str):
        return True  # as nearly all are
    if _text(part) == _text(built) or bool in (type(part), type(built)):
        return bool(part == built)
    try:
        return Decimal(str(part)) == Decimal(str(built))
    except InvalidOperation:
        return False


def _values(row: dict[str, Any], form: Form) -> Row:
    """A row's fields in order, which must be the fields that the form names."""
    assert list(row) == [form.field_name(place) for place in range(len(row))], f"{list(row)} isn't {form}"
    return list(row.values())


def _version(event: Event) -> patch.Version:
    """The master's, whose rules its operations follow."""
    return patch.version_of(event.source.get("server_version"))


_text = values.text
