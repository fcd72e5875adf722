"""The published spaces at the current position: their forms, topics and compiled encoders, and what is told of them.

`compiled` is what the hot loops look rows up in. A space is in it as long as nothing about it changes; whatever isn't in it
takes the slow way, which tells the outside about new forms (`settle`) before it compiles an encoder for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cdc import topics
from cdc.envelope import Envelope, SpaceEvents
from cdc.errors import KeysChangedError, UnkeyableError
from cdc.image_changes import VINYL_CHECKS_SINCE, ImageChanges
from cdc.images import Images
from cdc.keys import is_keyable
from cdc.outbox import Outbox
from cdc.position import Position
from cdc.protocol.codec import Body
from cdc.schema import ChangeKind, SchemaTracker, SpaceForm
from cdc.topics import SpaceFilter, TopicNames

Origin = tuple[int, int, int]
"""Replica id, lsn and tsn of the row that changed the schema."""


class Spaces:
    """Keeps schema, filter, topic names and encoders in step."""

    def __init__(
        self,
        schema: SchemaTracker,
        is_included: SpaceFilter,
        names: TopicNames,
        envelope: Envelope,
        outbox: Outbox,
        server_uuid: str,
        version: tuple[int, ...],
        images: Images | None = None,
    ) -> None:
        self._images = images
        # Of the spaces that have images, as they were compiled last.
        self.image_changes: dict[Any, ImageChanges] = {}
        self.schema = schema
        # Spaces that have been given another primary key, and whose rows are still kept, or known, under the old one.
        self._to_rekey: list[SpaceForm] = []
        # A space that isn't published has None here.
        self.compiled: dict[Any, SpaceEvents | None] = {}
        # The synchronous ones stand apart: their rows must be looked at before.
        self.apart: dict[Any, SpaceEvents | None] = {}
        self._is_included = is_included
        self._names = names
        self._envelope = envelope
        self._outbox = outbox
        self._server_uuid = server_uuid
        self._server_version = ".".join(map(str, version))
        self._merges_upserts = version < VINYL_CHECKS_SINCE
        self.merging_upsert_count = 0
        """UPSERTs of vinyl spaces, if the server is one that merges them."""
        # What is published may be decided otherwise than it was in the daemon's last life.
        schema.touch_all()

    def is_published(self, form: SpaceForm) -> bool:
        """Whether this space's changes come out."""
        return form.is_replicated and self._is_included(form.space_id, form.name)

    def is_wanted(self, space_id: int) -> bool:
        """Whether a space is published, as far as its name tells."""
        return self._is_included(space_id, self.schema.name(space_id) or "")

    def published_forms(self) -> list[SpaceForm]:
        """The spaces that are published, as they look now."""
        return [form for form in self.schema.forms() if self.is_published(form)]

    def apply(self, kind: int, body: Body) -> SpaceForm | None:
        """Fold a system row; returns the form of a published space whose rows it takes away. Raises SchemaError."""
        emptied = self.schema.apply(kind, body)
        if self.schema.last_touched is not None:
            # That one alone: the first snapshot touches all spaces before it comes to settle them.
            self.forget(self.schema.last_touched)
        return emptied if emptied is not None and self.is_published(emptied) else None

    def form(self, space_id: int) -> SpaceForm:
        """The form at this position. Raises SchemaError if the space can't have rows."""
        return self.schema.form(space_id)

    def compile(self, form: SpaceForm) -> SpaceEvents | None:
        """What a space's events are made with, None if it isn't published. Raises ConfigurationError for its topic's name."""
        return self.events_of(form) if self.is_published(form) else None

    def events_of(self, form: SpaceForm) -> SpaceEvents:
        """An encoder for one form, with its topic announced."""
        space = self.plain_events_of(form)
        self.image_changes.pop(form.space_id, None)
        if self._images is not None:
            try:
                changes = ImageChanges(space, self._images)
            except UnkeyableError as error:
                self._images.unkept[form.name] = error.message
            else:
                space.changes = changes.changes
                self.image_changes[form.space_id] = changes
        if form.is_vinyl and self._merges_upserts:
            space.count_upserts(self._count_upsert)
        return space

    def _count_upsert(self) -> None:
        self.merging_upsert_count += 1

    def plain_events_of(self, form: SpaceForm) -> SpaceEvents:
        """An encoder for one form that knows of no images, with its topic announced."""
        topic = self._names.of_space(form.space_id, form.name)
        self._outbox.announce(topic)
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
            self._images.unkept[form.name] = error.message

    def settle(
        self, position: Position, now_us: int, origin: Origin | None, on_drop: Callable[[SpaceForm], None] | None = None
    ) -> None:
        """Tell the outside about forms that have become different, and have them kept with the checkpoint.

        `on_drop`, in a snapshot, is told of spaces that are gone, before their topic may become another space's. Raises
        KeysChangedError outside of one if a space that has no images has been given another primary key.
        """
        if not self.schema.touched:
            return
        touched = self.schema.touched
        changes = self.schema.changes(self.is_published)
        # All names are given up before any is taken: in one transaction spaces may swap theirs.
        for change in changes:
            if change.kind is ChangeKind.DROP and on_drop is not None:
                on_drop(change.form)
            if change.kind is ChangeKind.DROP or change.previous_name is not None:
                self._names.release(change.form.space_id)
        for change in changes:
            form = change.form
            if self._images is not None and on_drop is None and change.kind is not ChangeKind.DROP:
                self._look_at_key(form)
            self.forget(form.space_id)
            if change.kind is not ChangeKind.DROP:
                self._outbox.announce(self._names.of_space(form.space_id, form.name))
            self._outbox.control(topics.SCHEMA, *self._envelope.schema_record(change, position, now_us, origin))
        for space_id in touched:
            self._outbox.stored[space_id] = self.schema.stored(space_id)

    def _look_at_key(self, form: SpaceForm) -> None:
        assert self._images is not None
        if not self._images.has_other_keys(form):
            return
        if self._images.is_unknown(form.space_id):
            raise KeysChangedError(
                f"space {form.name!r} has another primary key, and under the old one its rows couldn't be kept"
            )
        self._to_rekey.append(form)
