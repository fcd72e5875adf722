"""The published spaces at the current position: their forms, topics and compiled encoders, and what is told of them.

`compiled` is what the hot loops look rows up in. A space is in it as long as nothing about it changes; whatever isn't in it
takes the slow way, which tells the outside about new forms (`publish_schema_changes`) before it compiles an encoder for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from cdc import native
from cdc.errors import KeysChangedError, UnkeyableError, UnseenRowsError
from cdc.events import topics
from cdc.events.envelope import Envelope, SpaceEvents
from cdc.events.topics import SpaceFilter, TopicNames
from cdc.images.image_events import VINYL_CHECKS_SINCE, ImageChanges
from cdc.images.overlay import Images
from cdc.positions.position import Position
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key
from cdc.protocol.system_spaces import INDEX_SPACE
from cdc.schema.forms import ChangeKind, SpaceForm, StoredSpace
from cdc.schema.keys import is_keyable
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batch import BatchBuilder
from cdc.stream.compiled_rows import CompiledSpaces

ChangedBy = tuple[int, int, int]
"""Replica id, lsn and tsn of the row that changed the schema."""


def newly_published(stored: Iterable[StoredSpace], is_included: SpaceFilter) -> tuple[str, ...]:
    """Names of spaces whose changes come out from now on, and haven't up to where the schema is `stored`."""
    forms = SchemaTracker(stored).forms()
    return tuple(form.name for form in forms if not form.schema_version and _is_published(form, is_included))


def no_longer_published(stored: Iterable[StoredSpace], is_included: SpaceFilter) -> tuple[str, ...]:
    """Names of spaces whose changes have come out, and don't any more."""
    forms = SchemaTracker(stored).forms()
    return tuple(form.name for form in forms if form.schema_version and not _is_published(form, is_included))


def _is_published(form: SpaceForm, is_included: SpaceFilter) -> bool:
    return form.is_replicated and is_included(form.space_id, form.name)


class Spaces:
    """Keeps schema, filter, topic names and encoders in step."""

    def __init__(
        self,
        schema: SchemaTracker,
        is_included: SpaceFilter,
        names: TopicNames,
        envelope: Envelope,
        builder: BatchBuilder,
        server_uuid: str,
        version: tuple[int, ...],
        images: Images | None = None,
        row_path: native.CompiledRowPath | None = None,
    ) -> None:
        self._images = images
        # Of the spaces that have images, as they were compiled last.
        self.image_changes: dict[Any, ImageChanges] = {}
        self.schema = schema
        # Spaces that have been given another primary key, and whose rows are still kept, or known, under the old one.
        self._to_rekey: list[SpaceForm] = []
        # A space that isn't published has None here.
        self.compiled = CompiledSpaces(row_path)
        # The synchronous ones stand apart: their rows must be looked at before.
        self.apart: dict[Any, SpaceEvents | None] = {}
        self._is_included = is_included
        self._names = names
        self._envelope = envelope
        self._builder = builder
        self._server_uuid = server_uuid
        self._server_version = ".".join(map(str, version))
        self._merges_upserts = version < VINYL_CHECKS_SINCE
        self.merging_upsert_count = 0
        """UPSERTs of vinyl spaces, if the server is one that merges them."""
        # What is published may be decided otherwise than it was in the daemon's last life.
        schema.touch_all()
        self.unmarked = {space_id: schema.name(space_id) for space_id in schema.touched if self._is_unseen(space_id)}
        """Spaces that may have rows under a name that isn't published, with that name: what is in them nobody here knows."""
        # Spaces that have such a name since the transaction at hand, and no rows under it so far.
        self._unseen_since_now: dict[int, str | None] = {}

    def is_published(self, form: SpaceForm) -> bool:
        """Whether this space's changes come out."""
        return _is_published(form, self._is_included)

    def is_wanted(self, space_id: int) -> bool:
        """Whether a space is published, as far as its name tells."""
        return self._is_included(space_id, self.schema.name(space_id) or "")

    def published_forms(self) -> list[SpaceForm]:
        """The spaces that are published, as they look now."""
        return [form for form in self.schema.forms() if self.is_published(form)]

    def apply(self, kind: int, body: Body) -> SpaceForm | None:
        """Fold a system row; returns the form of a published space whose rows it takes away. Raises SchemaError."""
        emptied = self.schema.apply(kind, body)
        if emptied is not None and body[Key.SPACE_ID] == INDEX_SPACE:
            self.unmarked.pop(emptied.space_id, None)
        if self.schema.last_touched is not None:
            # That one alone: the first snapshot touches all spaces before it comes to settle them.
            self.forget(self.schema.last_touched)
        return emptied if emptied is not None and self.is_published(emptied) else None

    def form(self, space_id: int) -> SpaceForm:
        """The form at this position. Raises SchemaError if the space can't have rows."""
        return self.schema.form(space_id)

    def compile(self, form: SpaceForm) -> SpaceEvents | None:
        """What a space's events are made with, None if it isn't published. Raises ConfigurationError for its topic's name."""
        if self.is_published(form):
            return self.events_of(form)
        if self._is_unseen(form.space_id):
            self.unmarked[form.space_id] = form.name
        return None

    def end_transaction(self) -> None:
        """From here on rows may come that nobody looks at."""
        if self._unseen_since_now:
            self.unmarked |= self._unseen_since_now
            self._unseen_since_now.clear()

    def events_of(self, form: SpaceForm) -> SpaceEvents:
        """An encoder for one form, with its topic announced."""
        space = self.plain_events_of(form)
        self.image_changes.pop(form.space_id, None)
        if self._images is not None:
            try:
                changes = ImageChanges(space, self._images)
            except UnkeyableError as error:
                self._images.spaces_without_images[form.name] = error.message
            else:
                space.changes, space.changes_by = changes.changes, "image"
                space.key_number = self._images.number(form.space_id)
                self.image_changes[form.space_id] = changes
        if form.is_vinyl and self._merges_upserts:
            space.count_upserts(self._count_upsert)
        return space

    def _count_upsert(self) -> None:
        self.merging_upsert_count += 1

    def plain_events_of(self, form: SpaceForm) -> SpaceEvents:
        """An encoder for one form that knows of no images, with its topic announced."""
        topic = self._names.of_space(form.space_id, form.name)
        self._builder.announce(topic)
        space = SpaceEvents(form, topic, self._server_uuid)
        if self._images is None or not is_keyable(form):
            space.tell_version(self._server_version)
        return space

    def forget(self, space_id: int) -> None:
        """Have a space's encoder compiled anew."""
        self.compiled.pop(space_id, None)
        self.apart.pop(space_id, None)

    def take_rekeyed(self) -> list[SpaceForm]:
        """The spaces whose rows have to be brought under another primary key, since the last call."""
        forms, self._to_rekey = self._to_rekey, []
        return forms

    def rekey(self, form: SpaceForm) -> Iterator[None]:
        """Bring them. Yields now and then. Raises KeysChangedError."""
        assert self._images is not None
        try:
            yield from self._images.rekey(form)
        except UnkeyableError as error:
            self._images.spaces_without_images[form.name] = error.message

    def publish_schema_changes(
        self,
        position: Position,
        now_us: int,
        changed_by: ChangedBy | None,
        on_gone: Callable[[SpaceForm], None] | None = None,
        *,
        in_snapshot: bool = False,
    ) -> None:
        """Tell the outside about forms that have become different, and have them kept with the checkpoint.

        `on_gone` is told of spaces whose rows are gone from what is published, before their topic may become another space's:
        in a snapshot of all that it lacks, else of those that were given a name that isn't published, because a space that is
        dropped loses its rows before. Outside of a snapshot it raises KeysChangedError if a space that has no images has been
        given another primary key, and UnseenRowsError if one with unknown rows has been given a name that is published.
        """
        if not self.schema.touched:
            return
        touched = self.schema.touched
        self._look_at_names(touched, in_snapshot=in_snapshot)
        changes = self.schema.changes(self.is_published)
        # All names are given up before any is taken: in one transaction spaces may swap theirs.
        for change in changes:
            if change.kind is ChangeKind.DROP and on_gone is not None and (in_snapshot or self._has_other_name(change.form)):
                on_gone(change.form)
            if change.kind is ChangeKind.DROP or change.previous_name is not None:
                self._names.release(change.form.space_id)
        position = replace(position, seq=self._builder.seq)
        for change in changes:
            form = change.form
            if self._images is not None and not in_snapshot and change.kind is not ChangeKind.DROP:
                self._look_at_key(form)
            self.forget(form.space_id)
            if change.kind is not ChangeKind.DROP:
                self._builder.announce(self._names.of_space(form.space_id, form.name))
            self._builder.control(topics.SCHEMA, *self._envelope.schema_record(change, position, now_us, changed_by))
        for space_id in touched:
            self._builder.stored[space_id] = self.schema.stored(space_id)

    def is_left_out(self, form: SpaceForm) -> bool:
        """Whether a space that was published is there as before, and only the configuration has it no longer."""
        space_id = form.space_id
        return self._is_unseen(space_id) and space_id in self.schema and self.schema.name(space_id) == form.name

    def _has_other_name(self, form: SpaceForm) -> bool:
        return form.space_id in self.schema and self.schema.name(form.space_id) != form.name

    def _is_unseen(self, space_id: int) -> bool:
        return self.schema.has_primary_key(space_id) and not self.is_wanted(space_id)

    def _look_at_names(self, space_ids: list[int], *, in_snapshot: bool) -> None:
        for space_id in space_ids:
            name = self.schema.name(space_id)
            if self._is_unseen(space_id):
                has_rows = in_snapshot or space_id in self.unmarked or self.schema.is_known(space_id)
                (self.unmarked if has_rows else self._unseen_since_now)[space_id] = name
                continue
            self._unseen_since_now.pop(space_id, None)
            former_name = self.unmarked.pop(space_id, None)
            if in_snapshot or former_name is None or not self.schema.has_primary_key(space_id):
                continue
            if self.schema.form(space_id).is_replicated:
                raise UnseenRowsError(
                    f"space {former_name!r} ({space_id}), which isn't published, was renamed to {name!r}, which is: "
                    "what it had in it by then has never been published",
                    "A snapshot of everything has it, which the daemon takes by itself: let it run.",
                )

    def _look_at_key(self, form: SpaceForm) -> None:
        assert self._images is not None
        if not self._images.has_other_keys(form):
            return
        if self._images.is_unknown(form.space_id):
            raise KeysChangedError(
                f"space {form.name!r} has another primary key, and under the old one its rows couldn't be kept"
            )
        self._to_rekey.append(form)
