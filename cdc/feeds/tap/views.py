"""Rows of the daemon's store, read by this process while the daemon writes them.

This process writes only its entry in LMDB's table of readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from cdc.errors import EncodingError, SchemaError, StateError
from cdc.events.columns import NO_COLUMN_RULES, ColumnRules, plan_of
from cdc.events.row_encoder import RowEncoder
from cdc.feeds.tap.changes import packed
from cdc.feeds.tap.keys import KeyTemplate
from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.rows import BusyError, RowStore, View
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import SpaceForm
from cdc.store.files import DATA_FILE, is_clean, translate_lmdb_errors
from cdc.store.store import FORMAT
from cdc.store.writer import numbers_in
from cdc.stream.commits.checkpoint import Checkpoint, fold

_ELSEWHERE = "Start the daemon; clients wait for it. Where the daemon runs on another machine, set tap.store_path."


@dataclass(slots=True)
class _Space:
    number: int
    name: str
    encoder: RowEncoder
    template: KeyTemplate
    is_masked: bool = False
    """Whether clients don't get the tuples as they are, because of rules for columns."""
    prefix: bytes = b""
    number_field: int | None = None
    """Index of the primary key's field if the key is one integer and follows `prefix` in the client's key; otherwise None."""


class DaemonStore(RowStore):
    """Reader of one daemon's store."""

    def __init__(
        self,
        path: Path,
        name: str,
        template: Callable[[str], KeyTemplate | None],
        vbucket_count: int,
        view_seconds_max: float,
        columns: ColumnRules = NO_COLUMN_RULES,
    ) -> None:
        """`template` returns a space's key template, or None if the space isn't wanted."""
        super().__init__(vbucket_count, view_seconds_max)
        self._path = path
        self._name = name
        self._template = template
        self._columns = columns
        self._environment: lmdb.Environment | None = None
        self._identity: tuple[int, int] | None = None
        self._databases: tuple[Any, ...] = ()
        self._records: dict[bytes, bytes] = {}
        self._spaces: list[_Space] = []

    def _errors(self) -> AbstractContextManager[None]:
        return translate_lmdb_errors(self._path)

    def _encode_rows(
        self,
        rows: Sequence[tuple[bytes, bytes]],
        space: _Space,
        view: View,
        selection: Selection,
        frame_count: int,
        *,
        is_packed: bool,
    ) -> tuple[list[bytes], list[bytes]]:
        encode, key_of, template = space.encoder.rows, space.encoder.key_of, space.template
        prefix, number_field, needs_row, of_key = space.prefix, space.number_field, template.needs_row, template.of_key
        names, values = [], []
        for _, row in rows:
            fields = tuple_values(row)
            try:
                shown = encode[len(fields)](fields)
                name: bytes | None
                if number_field is not None:
                    name = b"%b%d" % (prefix, fields[number_field])
                elif needs_row:
                    name = template.of_row(key_of(fields), shown)
                else:
                    name = of_key(key_of(fields))
            except (EncodingError, SchemaError):
                continue  # the row has no event either
            if name is None:
                continue
            names.append(name)
            values.append(shown if not is_packed else packed(shown) if space.is_masked else row)
        numbers = [(view.seq + number, view.seq) for number in range(frame_count, frame_count + len(names))]
        return self._frames(names, values, numbers, selection)

    def _open_view(self) -> View:
        self._open()
        assert self._environment is not None
        about, _, records_db = self._databases
        transaction = self._environment.begin(buffers=False)
        try:
            if transaction.get(b"format", db=about) != FORMAT:
                raise StateError(
                    f"the state store {self._path} was written by another version", "Run the daemon's version of this program."
                )
            if transaction.get(b"redo", db=about) is not None:
                raise BusyError(f"a large write into the state store {self._path} isn't complete")
            return self._view_of(transaction, dict(transaction.cursor(records_db)))
        except BaseException:
            transaction.abort()
            raise

    def _view_of(self, transaction: Any, records: dict[bytes, bytes]) -> View:
        checkpoint = Checkpoint()
        for key, value in records.items():
            fold(self._name, key, value, checkpoint)
        position = checkpoint.position
        if position is None:
            raise BusyError(
                f"the state store {self._path} doesn't contain data of a daemon {self._name!r} yet",
                _ELSEWHERE,
            )
        if position.rekeyed:
            raise BusyError(f"rows in the state store {self._path} are being re-keyed")
        forms = {key: value for key, value in records.items() if b"space_id" in key or b"numbers" in key}
        if forms != self._records:
            self._records = forms
            numbers = numbers_in(records)
            spaces = [self._space(form, numbers) for form in checkpoint.published_forms()]
            self._spaces = sorted((space for space in spaces if space is not None), key=lambda space: space.number)
        return View(transaction, self._databases[1], position.seq, position.schema_version, self._spaces, position.doubtful)

    def _space(self, form: SpaceForm, numbers: dict[int, int]) -> _Space | None:
        template = self._template(form.name)
        if template is None:
            return None
        space = _Space(numbers.get(form.space_id, form.space_id), form.name, RowEncoder(self._columns.shown(form)), template)
        space.is_masked = plan_of(space.encoder.form) is not None
        part = form.key_parts[0]
        if template.prefix is not None and len(form.key_parts) == 1 and not part.path and part.type in ("unsigned", "integer"):
            space.prefix, space.number_field = template.prefix, part.field
        return space

    def _open(self) -> None:
        data = self._path / DATA_FILE
        try:
            found = data.stat()
        except FileNotFoundError as error:
            raise BusyError(f"there is no state store in {self._path} yet", _ELSEWHERE) from error
        identity = found.st_dev, found.st_ino
        if self._environment is not None and identity == self._identity:
            return
        self._close()
        is_clean(self._path)  # raises StateLostError for a store that can't be trusted
        environment = lmdb.open(str(self._path), readonly=True, max_dbs=8, max_readers=126, readahead=False, map_size=1 << 40)
        try:
            self._databases = tuple(environment.open_db(name, create=False) for name in (b"about", b"rows", b"records"))
        except lmdb.NotFoundError as error:
            environment.close()
            raise BusyError(f"the state store {self._path} is being created") from error
        self._environment, self._identity = environment, identity
        self._records = {}

    def _close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None
