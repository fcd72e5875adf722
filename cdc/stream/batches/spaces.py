"""The published spaces at the current position: their forms, topics and encoders, and the reports of their changes.

An encoder is made from a form, whichever row path uses it. The hot loops look up a row's encoder in `encoders`. A space is
in it as long as nothing about it changes. Rows of all other spaces take the slow path, which publishes changed forms
(`publish_schema_changes`) before it makes an encoder for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from cdc.errors import KeysChangedError, SchemaError, SnapshotNeededError, UnkeyableError, UnseenRowsError
from cdc.events import topics
from cdc.events.columns import CONCEALED
from cdc.events.envelope import Envelope, SpaceEvents
from cdc.events.routes import check_routes
from cdc.events.row_route import check_rows, row_route
from cdc.events.topics import SpaceFilter
from cdc.formats.names import check_names
from cdc.formats.rows import widened
from cdc.images.image_events import VINYL_CHECKS_SINCE, ImageChanges
from cdc.images.overlay import Images
from cdc.images.routed_changes import RoutedImageChanges, RoutedSourceImages
from cdc.images.source_images import SourceImages
from cdc.positions.position import Position
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key
from cdc.protocol.system_spaces import INDEX_SPACE
from cdc.schema.fitting import check_types
from cdc.schema.forms import ChangeKind, SpaceForm, StoredSpace
from cdc.schema.keys import is_keyable
from cdc.schema.tracker import TRACKED_SPACES, SchemaTracker
from cdc.stream.batches.batch import BatchBuilder
from cdc.stream.batches.bucket_gate import BucketGate
from cdc.stream.batches.compiled_rows import Encoders, compiled_row_path
from cdc.stream.batches.moves import MoveWatch
from cdc.stream.batches.options import Surroundings

ChangedBy = tuple[int, int, int]
"""Replica id, lsn and tsn of the row that changed the schema."""


def newly_published(stored: Iterable[StoredSpace], is_included: SpaceFilter) -> tuple[str, ...]:
    """Return the names of the spaces that are published from now on, and weren't at the position of the schema `stored`."""
    forms = SchemaTracker(stored).forms()
    return tuple(form.name for form in forms if not form.schema_version and _is_published(form, is_included))


def no_longer_published(stored: Iterable[StoredSpace], is_included: SpaceFilter) -> tuple[str, ...]:
    """Return the names of the spaces that were published, and aren't any more."""
    forms = SchemaTracker(stored).forms()
    return tuple(form.name for form in forms if form.schema_version and not _is_published(form, is_included))


def _is_published(form: SpaceForm, is_included: SpaceFilter) -> bool:
    return form.is_replicated and is_included(form.space_id, form.name)


def _has_other_name(schema: SchemaTracker, form: SpaceForm) -> bool:
    return form.space_id in schema and schema.name(form.space_id) != form.name


class Spaces:
    """Schema, filter, topic names and encoders, kept consistent with each other."""

    def __init__(
        self,
        surroundings: Surroundings,
        schema: SchemaTracker,
        envelope: Envelope,
        builder: BatchBuilder,
        images: Images | None = None,
        kept: Iterable[StoredSpace] = (),
    ) -> None:
        """`kept` are spaces that count as published at first, though the configuration may leave them out now."""
        self._images = images
        # Of the spaces with images: their last ImageChanges.
        self.image_changes: dict[Any, ImageChanges] = {}
        self.schema = schema
        # Spaces with a changed primary key, whose rows are still kept, or known, under the old one.
        self._to_rekey: list[SpaceForm] = []
        self.row_path = compiled_row_path(surroundings.options, envelope, builder.names.control(topics.TRANSACTION))
        """The compiled row path, which has those of `encoders`, too; None where only the Python path is available, or makes the
        configured formats."""
        # None for a space that isn't published.
        self.encoders = Encoders(self.row_path)
        self._is_included = surroundings.options.space_filter()
        self._names = builder.names
        self._headers = surroundings.options.headers
        self._envelope = envelope
        self._builder = builder
        self._server_uuid = str(surroundings.server_uuid)
        self._has_source_images = surroundings.options.has_source_images
        self._keeps_images: Callable[[SpaceForm], bool] = is_keyable if images is not None else lambda _: self._has_source_images
        self._server_version = ".".join(map(str, surroundings.version))
        self._merges_upserts = surroundings.version < VINYL_CHECKS_SINCE
        # Of those that the Python path has handled.
        self._merging_upsert_count = 0
        self.unpublished_spaces_with_rows: dict[int, str | None] = {}
        """Spaces that may have rows under an unpublished name, with that name: the daemon doesn't know these rows."""
        self.begin_rules(kept)
        # By space: the greatest length of its tuples, if the format of events has a schema that doesn't have as many fields.
        self._widths: dict[int, int] = {}
        self._formats = surroundings.options.formats
        for form in self.published_forms() if images is not None else ():
            check_types(form)
        self._columns = envelope.columns
        self.shown_otherwise: set[int] = set()
        """Spaces of which a snapshot must publish all rows, because other rules apply to their columns, or to their topics."""
        self._check_published()
        self.moves: MoveWatch | None = None
        """Which rows moves of buckets make, if events say so."""
        if self._formats.marks_moves and images is not None:
            self.moves = MoveWatch(schema, images, envelope, self.discard_encoder)
        self.gate: BucketGate | None = None
        """What lets rows of buckets that move wait, or hides them, where shards share topics."""
        if surroundings.shards is not None and images is not None:
            self.gate = BucketGate(surroundings.shards, schema, images, builder, self.discard_encoder)
        # Spaces that got an unpublished name in the current transaction, and have no rows under it so far.
        self._newly_unpublished: dict[int, str | None] = {}

    def begin_rules(self, kept: Iterable[StoredSpace] = ()) -> None:
        """Have the configuration say which spaces are published from here on; those that were published in `kept` are.

        Up to a checkpoint that has them, their rows are stored also if they are left out now: if the process ends before the
        checkpoint says so, and they are published again then, nothing else would bring these rows.
        """
        self._is_included.kept = frozenset(space.space_id for space in kept if space.schema_version)
        # The configuration may publish other spaces than in the daemon's last run.
        schema = self.schema
        schema.touch_all()
        self.unpublished_spaces_with_rows = {
            space_id: schema.name(space_id) for space_id in schema.touched if self._may_have_unpublished_rows(space_id)
        }

    def is_published(self, form: SpaceForm) -> bool:
        """Return whether this space's changes are published."""
        return _is_published(form, self._is_included)

    def is_wanted(self, space_id: int) -> bool:
        """Return whether a space is published, judging by its name alone."""
        return self._is_included(space_id, self.schema.name(space_id) or "")

    def published_forms(self) -> list[SpaceForm]:
        """Return the present forms of the published spaces."""
        return [form for form in self.schema.forms() if self.is_published(form)]

    def apply(self, kind: int, body: Body) -> SpaceForm | None:
        """Fold a system row; return the form of a published space that loses its rows by it. Raises SchemaError."""
        emptied = self.schema.apply(kind, body)
        if emptied is not None and body[Key.SPACE_ID] == INDEX_SPACE:
            self.unpublished_spaces_with_rows.pop(emptied.space_id, None)
        if self.schema.last_touched is not None:
            # Forget this space alone: the first snapshot touches all spaces before it publishes their forms.
            self.discard_encoder(self.schema.last_touched)
        if emptied is None or self.is_published(emptied):
            return emptied
        if self._images is not None and next(self._images.scan(emptied.space_id), None) is not None:
            # The rows are from before the configuration left the space out. The next space of this number must not have them.
            self._images.clear(emptied.space_id)
        return None

    def form(self, space_id: int) -> SpaceForm:
        """Return the form at this position. Raises SchemaError if the space can't have rows."""
        return self.schema.form(space_id)

    def new_encoder(self, form: SpaceForm) -> SpaceEvents | None:
        """Return the encoder of a space's events, None if it isn't published. Raises ConfigurationError for its topic's name."""
        if self.is_published(form):
            return self.events_of(form)
        if self._may_have_unpublished_rows(form.space_id):
            self.unpublished_spaces_with_rows[form.space_id] = form.name
        return None

    def end_transaction(self) -> None:
        """Note that the transaction has ended: its renamed spaces may get rows under an unpublished name from now on."""
        if self._newly_unpublished:
            self.unpublished_spaces_with_rows |= self._newly_unpublished
            self._newly_unpublished.clear()

    def events_of(self, form: SpaceForm) -> SpaceEvents:
        """Return an encoder for one form, and announce its topic."""
        space = self.plain_events_of(form)
        # Only the Python path knows these rules, and makes messages with headers.
        space.is_compiled &= space.route is None
        route = space.route if space.route is not None and space.route.has_rules else None
        self.image_changes.pop(form.space_id, None)
        if self._images is not None:
            try:
                changes = ImageChanges(space, self._images) if route is None else RoutedImageChanges(space, self._images, route)
            except UnkeyableError as error:
                self._images.spaces_without_images[form.name] = error.message
                space.changes = space.changes if route is None else route.by_key(space.changes)
            else:
                space.changes, space.changes_by = changes.changes, "image"
                space.key_number = self._images.number(form.space_id)
                self.image_changes[form.space_id] = changes
                if self.moves is not None:
                    self.moves.watch(space, changes)
                if self.gate is not None:
                    self.gate.watch(space, changes)
        elif self._has_source_images:
            source = SourceImages(space) if route is None else RoutedSourceImages(space, route)
            space.changes, space.changes_by = source.changes, "source"
            return space
        elif route is not None:
            space.changes = route.by_key(space.changes)
        if form.is_vinyl and self._merges_upserts:
            space.count_upserts(self._count_upsert)
        return space

    def _count_upsert(self) -> None:
        self._merging_upsert_count += 1

    @property
    def merging_upsert_count(self) -> int:
        """Number of UPSERTs of vinyl spaces, if the server merges them."""
        return self._merging_upsert_count + (self.row_path.upsert_count if self.row_path is not None else 0)

    def plain_events_of(self, form: SpaceForm, *, is_former: bool = False) -> SpaceEvents:
        """Return an encoder for one form that uses no images, and announce its topic.

        If `is_former`, these are events of the past, and another space may have the topic now.
        """
        place = form.name, form.routing
        topic = self._names.unchecked(*place) if is_former else self._names.of_space(form.space_id, *place)
        self._builder.announce(topic)
        has_images = self._keeps_images(form)
        server_version = None if has_images else self._server_version
        width = self._widths.get(form.space_id)
        shape = widened(form, width, self._columns.shown(form).field_names) if width is not None else form
        space = SpaceEvents(form, topic, self._envelope.pieces(shape, topic, self._server_uuid, server_version))
        space.route = row_route(form, self._headers)
        return space

    def widen(self, form: SpaceForm, width: int) -> SpaceEvents:
        """Return a new encoder for tuples of this length, for which the schema of the space in its format has too few fields."""
        self._widths[form.space_id] = width
        return self.events_of(form)

    def discard_encoder(self, space_id: int) -> None:
        """Remove a space's encoder, so that it is made again."""
        self.encoders.pop(space_id, None)

    def take_rekeyed(self) -> list[SpaceForm]:
        """Return the spaces since the last call whose rows have to be moved to another primary key."""
        forms, self._to_rekey = self._to_rekey, []
        return forms

    def rekey(self, form: SpaceForm) -> Iterator[None]:
        """Move a space's rows to its new primary key. Yields now and then. Raises KeysChangedError."""
        assert self._images is not None
        try:
            yield from self._images.rekey(form)
        except UnkeyableError as error:
            self._images.spaces_without_images[form.name] = error.message
        except KeysChangedError as error:
            if self.conceals(form.space_id):
                error.detail = f"the row {CONCEALED}"
            raise

    def publish_schema_changes(
        self,
        position: Position,
        now_us: int,
        changed_by: ChangedBy | None,
        on_gone: Callable[[SpaceForm], None] | None = None,
        *,
        on_moved: Callable[[SpaceForm], None] | None = None,
        in_snapshot: bool = False,
    ) -> None:
        """Publish the changed forms, and add them to the checkpoint.

        `on_gone` is called for each space whose published rows are gone, before its topic may become another space's. In a
        snapshot, these are all spaces that it lacks. Outside of a snapshot, these are the spaces that got an unpublished name;
        a dropped space loses its rows earlier. `on_moved` is called with the former form of each space whose routing is another
        now, before its rows are published again. Outside of a snapshot, raises SnapshotNeededError if a space without images got
        another primary key, or other rules for columns apply to it, and UnseenRowsError if a space with unknown rows got a
        published name. With images, raises ConfigurationError for a field of an unknown type.
        """
        if not self.schema.is_touched:
            return
        touched = self.schema.touched
        self._check_names(touched, in_snapshot=in_snapshot)
        changes = self.schema.changes(self.is_published)
        # All names are released before any is assigned: spaces may swap their names in one transaction.
        for change in changes:
            if (
                change.kind is ChangeKind.DROP
                and on_gone is not None
                and (in_snapshot or _has_other_name(self.schema, change.form))
            ):
                on_gone(change.form)
            if change.kind is ChangeKind.DROP:
                self._names.release(change.form.space_id)
        # Also those of spaces that never were published under them, and are gone or have another name: no change tells of these.
        for space_id in touched:
            self._names.release(space_id)
        self._check_published()
        self._columns.check_new_keys(changes)
        position = replace(position, seq=self._builder.seq)
        for change in changes:
            form = change.form
            if self._images is not None and change.kind is not ChangeKind.DROP:
                check_types(form)
                if not in_snapshot:
                    self._check_key(form)
            former = change.former_route
            if former is not None and on_moved is not None and self._names.are_apart(former, form):
                on_moved(former)
            is_other = change.has_other_columns or former is not None
            if is_other and in_snapshot:
                self.shown_otherwise.add(form.space_id)
            elif is_other:
                self._publish_again(form, "columns" if change.has_other_columns else "topics and rows")
            self.discard_encoder(form.space_id)
            if change.kind is not ChangeKind.DROP:
                self._builder.announce(self._names.of_space(form.space_id, form.name, form.routing))
            self._builder.control(topics.SCHEMA, *self._envelope.schema_record(change, position, now_us, changed_by))
        for space_id in touched:
            self._builder.stored[space_id] = self.schema.stored(space_id)

    def conceals(self, space_id: object) -> bool:
        """Return whether the rules for columns forbid to show a space's rows as they were received.

        They do if the space isn't known. The system's rows that the schema is made from are never concealed.
        """
        if not self._columns:
            return False
        if type(space_id) is not int:
            return True
        if space_id in TRACKED_SPACES:
            return False
        try:
            return self._columns.conceals(self.schema.form(space_id))
        except SchemaError:
            return True

    def _check_published(self) -> None:
        """Raise ConfigurationError for forms that can't be published as configured.

        The rules for columns may contradict each other, or concern the primary key. Names of fields, or of spaces, may become one
        in a format that doesn't keep all names. Two spaces may have the same topic.
        """
        forms = self.published_forms()
        check_names([self._columns.shown(form) for form in forms], self._formats)
        if self._names.are_past:
            return
        check_routes(forms)
        check_rows(forms, self._keeps_images)
        for form in forms:
            self._names.of_space(form.space_id, form.name, form.routing)

    def is_left_out(self, form: SpaceForm) -> bool:
        """Return whether a formerly published space exists unchanged, and only the configuration leaves it out now."""
        space_id = form.space_id
        return self._may_have_unpublished_rows(space_id) and space_id in self.schema and self.schema.name(space_id) == form.name

    def _may_have_unpublished_rows(self, space_id: int) -> bool:
        return self.schema.has_primary_key(space_id) and not self.is_wanted(space_id)

    def _check_names(self, space_ids: list[int], *, in_snapshot: bool) -> None:
        for space_id in space_ids:
            name = self.schema.name(space_id)
            if self._may_have_unpublished_rows(space_id):
                has_rows = in_snapshot or space_id in self.unpublished_spaces_with_rows or self.schema.is_known(space_id)
                (self.unpublished_spaces_with_rows if has_rows else self._newly_unpublished)[space_id] = name
                continue
            self._newly_unpublished.pop(space_id, None)
            former_name = self.unpublished_spaces_with_rows.pop(space_id, None)
            if in_snapshot or former_name is None or not self.schema.has_primary_key(space_id):
                continue
            if self.schema.form(space_id).is_replicated:
                raise UnseenRowsError(
                    f"space {former_name!r} ({space_id}), which isn't published, was renamed to {name!r}, which is: "
                    "the rows that it had before have never been published",
                    "The daemon automatically takes a snapshot, which contains them: let it run.",
                )

    def _publish_again(self, form: SpaceForm, what: str) -> None:
        """Have a space's rows published again, as other rules apply to it. Raises SnapshotNeededError."""
        if form in self._to_rekey:
            return
        if self._images is None or not is_keyable(form):
            raise SnapshotNeededError(
                f"other rules for {what} apply to space {form.name!r}, and its rows aren't kept",
                "The daemon automatically takes a snapshot, which shows all rows by the new rules: let it run.",
            )
        if next(self._images.scan(form.space_id), None) is not None:
            self._to_rekey.append(form)

    def _check_key(self, form: SpaceForm) -> None:
        assert self._images is not None
        if not self._images.has_other_keys(form):
            return
        if self._images.is_unknown(form.space_id):
            raise KeysChangedError(
                f"space {form.name!r} has another primary key, and under the old one its rows couldn't be kept"
            )
        self._to_rekey.append(form)
