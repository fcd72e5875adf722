"""The compiled row path of one connection: the spaces whose rows it handles, and its runs.

    spaces.encoders[id] = …  ─▶ a plan there          CompiledRowPath.run ─▶ messages, and where it stopped
    spaces.encoders.pop(id)  ─▶ no plan any more           │ the next transaction is uncommon
                                                           ▼
                                                      the Python path (cdc.stream.python_stream)

A space without a plan there isn't an error: its rows take the Python path, which is the specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, SupportsIndex

from cdc import native
from cdc.events.envelope import Envelope, Openings, SpaceEvents, shared_name
from cdc.events.json_values import encode
from cdc.events.row_encoder import PLAIN_FIELD_TYPES
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import compiled_part
from cdc.stream.batches.options import PipelineOptions

_new_row_path: Final[Callable[[bytes, bool, bool, bool, int | None, str, int], native.CompiledRowPath] | None] = native.choose(
    "CompiledRowPath", None
)

_RECORDS_FROM: Final = {"none": None, "multi": 2, "all": 1}
_NO_MAX: Final = 1 << 32
_OPENINGS: Final = len(Openings._fields) - 1
"""Number of the openings there: the last one is that of a truncation, which takes the Python path."""
_PAST_FORMAT: Final = re.compile(r"field_\d+")


def compiled_row_path(options: PipelineOptions, envelope: Envelope, transaction_topic: str) -> native.CompiledRowPath | None:
    """Return a row path without any plans; None where only the Python path is available, or makes the events' formats."""
    if _new_row_path is None or not options.formats.is_compiled:
        return None
    records_from = _RECORDS_FROM[options.transaction_topic]
    is_lean = options.formats.source == "lean"
    return _new_row_path(
        *envelope.compiled_source, is_lean, options.tombstones, records_from, transaction_topic, options.batch_bytes_max
    )


class Encoders(dict[Any, SpaceEvents | None]):
    """Encoders of the spaces, None for an unpublished one.

    Keeps the compiled path's plans in step. Rows of synchronous spaces are handled there only after the limbo has released them.
    """

    def __init__(self, row_path: native.CompiledRowPath | None) -> None:
        super().__init__()
        self._row_path = row_path

    def __setitem__(self, space_id: Any, space: SpaceEvents | None) -> None:
        """Set a space's encoder for the rows of a snapshot."""
        self.put(space_id, space, is_streamed=False)

    def put(self, space_id: Any, space: SpaceEvents | None, *, is_synchronous: bool = False, is_streamed: bool = True) -> None:
        """Set a space's encoder. If the space `is_synchronous`, the limbo releases its rows."""
        super().__setitem__(space_id, space)
        path = self._row_path
        if path is None:
            return
        path.remove_plan(space_id)
        if space is None:
            path.skip_space(space_id, is_synchronous)
        elif space.is_compiled and space.changes_by != "nobody" and not (is_streamed and space.changes_by == "source"):
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
    if len(set(names)) < len(names):
        return
    try:
        fields = [(encode(item.name), item.type in PLAIN_FIELD_TYPES) for item in form.fields]
        parts = [(encode(name), compiled_part(part)) for name, part in zip(names, form.key_parts, strict=True)]
        if form.routing.shared_as:
            # As text in front of the first part, whose name is written as it is.
            parts[0] = b"%b,%b" % (shared_name(form.routing.shared_as), parts[0][0]), parts[0][1]
        name = encode(form.name)
        images = _images(space) if space.changes_by == "image" else None
    except UnicodeEncodeError:
        return  # a name isn't valid UTF-8
    columns, fields_max = None, _fields_max(form)
    if space.columns is not None:
        treatments, salt, are_all = space.columns.compiled
        columns = treatments, salt
        if not are_all:
            fields_max = min(fields_max, len(form.fields))
    about = space.topic, name, space.table, space.schema, list(space.openings[:_OPENINGS]), (space.row_plan, space.key_plan)
    upserts = space.counts_upserts
    path.set_plan(form.space_id, *about, fields, parts, fields_max, images, columns, upserts, is_synchronous)


def _images(space: SpaceEvents) -> native.ImageRules:
    """Return the number of a space's keys in the state store, its fields, whether it is in vinyl, and what fits its format."""
    fields = [(field.name.encode(), field.type) for field in space.form.fields]
    return space.key_number, fields, space.form.is_vinyl, space.fitting.rules if space.fitting is not None else None


def _fields_max(form: SpaceForm) -> int:
    """Return how many fields a tuple may have without two fields of the same name."""
    names = form.field_names
    for place, name in enumerate(names):
        if name in names[:place]:
            return place
    return len(names) if any(map(_PAST_FORMAT.fullmatch, names)) else _NO_MAX
