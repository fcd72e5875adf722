"""The compiled row path of one connection: the spaces whose rows it handles, and its runs.

    spaces.compiled[id] = …  ─▶ a plan there          CompiledRowPath.run ─▶ messages, and where it stopped
    spaces.compiled.pop(id)  ─▶ no plan any more           │ the next transaction is uncommon
                                                           ▼
                                                      the Python path (cdc.stream.pipeline)

A space without a plan there isn't an error: its rows take the Python path, which is the specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, SupportsIndex
from uuid import UUID

from cdc import native
from cdc.events.envelope import SpaceEvents
from cdc.events.json_values import encode
from cdc.events.key_text import key_converter
from cdc.events.row_encoder import PLAIN_FIELD_TYPES
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.stream.options import PipelineOptions

_new_row_path: Final[Callable[[bytes, bool, int | None, str, int], native.CompiledRowPath] | None] = native.choose(
    "CompiledRowPath", None
)

_KINDS: Final[dict[type, int]] = {type(None): 1, bool: 2, int: 4, str: 8, bytes: 16, UUID: 32}
"""Bit of each type of values in a plan (cdc/native/src/plan.rs)."""
_ALL_KINDS: Final = sum(_KINDS.values())
_INSTANT: Final = 64
"""Bit of points in time, which a key contains without their time zones."""
_RECORDS_FROM: Final = {"none": None, "multi": 2, "all": 1}
_NO_MAX: Final = 1 << 32
_PAST_FORMAT: Final = re.compile(r"field_\d+")


def compiled_row_path(options: PipelineOptions, source: bytes, transaction_topic: str) -> native.CompiledRowPath | None:
    """Return a row path without any plans; None where only the Python path is available."""
    if _new_row_path is None:
        return None
    records_from = _RECORDS_FROM[options.transaction_topic]
    return _new_row_path(source, options.tombstones, records_from, transaction_topic, options.batch_bytes_max)


class CompiledSpaces(dict[Any, SpaceEvents | None]):
    """Encoders of the spaces, None for an unpublished one.

    Keeps the compiled path's plans in step. Rows of synchronous spaces are handled there only after the limbo has released them.
    """

    def __init__(self, row_path: native.CompiledRowPath | None) -> None:
        super().__init__()
        self._row_path = row_path

    def __setitem__(self, space_id: Any, space: SpaceEvents | None) -> None:
        self.put(space_id, space)

    def put(self, space_id: Any, space: SpaceEvents | None, *, is_synchronous: bool = False) -> None:
        """Set a space's encoder. If the space `is_synchronous`, the limbo releases its rows."""
        super().__setitem__(space_id, space)
        path = self._row_path
        if path is None:
            return
        path.remove_plan(space_id)
        if space is None:
            path.skip_space(space_id, is_synchronous)
        elif space.changes_by != "nobody":
            _set_plan(path, space, is_synchronous=is_synchronous)

    def pop(self, space_id: SupportsIndex, default: Any = None) -> Any:
        """Remove a space."""
        if self._row_path is not None:
            self._row_path.remove_plan(int(space_id))
        return super().pop(space_id, default)

    def clear(self) -> None:
        """Remove all spaces."""
        if self._row_path is not None:
            self._row_path.remove_all_plans()
        super().clear()


def _set_plan(path: native.CompiledRowPath, space: SpaceEvents, *, is_synchronous: bool) -> None:
    """Add a plan for a space to the compiled path, if the path can handle the space's form."""
    form = space.form
    names = [form.part_name(index) for index in range(len(form.key_parts))]
    kinds = [_kinds(part) for part in form.key_parts]
    if len(set(names)) < len(names) or not all(kinds):
        return
    if space.changes_by == "image" and any(part.is_as_written for part in form.key_parts):
        return  # Python makes the space's keys in the state store
    try:
        fields = [(encode(item.name), item.type in PLAIN_FIELD_TYPES) for item in form.fields]
        parts = [(encode(name), part.field, kind) for name, part, kind in zip(names, form.key_parts, kinds, strict=True)]
        name = encode(form.name)
        images = _images(space) if space.changes_by == "image" else None
    except UnicodeEncodeError:
        return  # a name isn't valid UTF-8
    handles_upserts = not form.is_vinyl  # UPSERTs of vinyl spaces are counted in Python, if the server merges them
    about = space.topic, name, space.table, space.schema
    path.set_plan(form.space_id, *about, fields, parts, _fields_max(form), images, handles_upserts, is_synchronous)


def _images(space: SpaceEvents) -> native.ImageKeys:
    """Return the number and parts of a space's keys in the state store, its fields, and whether it is in vinyl."""
    form = space.form
    parts = [(part.field, part.type) for part in form.key_parts]
    # Vinyl checks an UPSERT's tuple when it is too late to refuse the UPSERT, and finds keys by their bytes: it has other rules.
    return space.key_number, parts, [(field.name.encode(), field.type) for field in form.fields], form.is_vinyl


def _kinds(part: KeyPart) -> int:
    """Return the bits of the value types that a key part may have and that are written unchanged; 0 if there are none."""
    if part.path:
        return 0
    if part.type == "datetime" and not part.is_as_written:
        return _INSTANT
    return _ALL_KINDS if part.type in PLAIN_FIELD_TYPES else sum(_KINDS[kind] for kind in key_converter(part)[1])


def _fields_max(form: SpaceForm) -> int:
    """Return how many fields a tuple may have without two fields of the same name."""
    names = form.field_names
    for place, name in enumerate(names):
        if name in names[:place]:
            return place
    return len(names) if any(map(_PAST_FORMAT.fullmatch, names)) else _NO_MAX
