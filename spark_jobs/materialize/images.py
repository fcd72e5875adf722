"""Events of spaces without images → the same events with the row before and after: frames in, frames out.

The events of a key are applied in the order of `seq` to the stored row. If all events of a key have their rows, and all rows
have one form, Spark's own functions do it; a key with a patch, or with rows of several forms, is processed in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import json_text
from spark_jobs.contract.forms import Form
from spark_jobs.contract.patch import PatchError, update, upsert, version_of
from spark_jobs.contract.python_function import python_function
from spark_jobs.errors import JobError

STORED_SCHEMA: Final = "space_id bigint, key string, seq bigint, row string, schema_version bigint"
"""Last row of each key (null if it was deleted), with the seq and the form of its last change."""

ENDING_SCHEMA: Final = "space_id bigint, up_to bigint, at bigint"
"""Removals of many rows: rows whose last change is `up_to` or older don't exist for events after `at`."""

_FROM_A_SNAPSHOT: Final = (
    "stop the daemon, start the job with --starting-offsets latest, another --path and another --checkpoint, and when the job"
    ' runs, start the daemon with snapshot.mode = "always" for this once: all rows then come before any change of them'
)
"""What to do where the topics no longer tell all rows. From the first event on, the job would meet the same event again; and
what comes between its start and a snapshot would have no rows."""

_IMAGES: Final = "array<struct<op:string,before:string,after:string>>"
_OF_EVENTS: Final = ("seq", "op", "after", "patch", "upsert", "schema_version", "server_version")
"""Fields of an event that Python gets."""

# SQL expression: the row that the previous event left, unless it was removed since.
_PREVIOUS: Final = """
if(i = 0,
   if(stored_row is null or exists(endings, one -> one.up_to >= stored_seq and one.at < e.seq), null, stored_row),
   if(exists(endings, one -> one.up_to >= events[i - 1].seq and one.at < e.seq), null, events[i - 1].after))
"""


def with_images(
    rows: DataFrame, stored: DataFrame, endings: DataFrame, forms: Mapping[tuple[int, int], Form], *, skip_missing: bool
) -> DataFrame:
    """Return the events (CHANGES_COLUMNS) that are newer than the stored rows and changed something, with both rows.

    A DELETE of a missing row is left out, and a REPLACE or UPSERT that created its row becomes a `c`. An UPDATE whose row isn't
    known fails the query, or with `skip_missing` is left out.
    """
    others = [name for name in rows.columns if name not in ("space_id", "key", "seq")]
    grouped = (
        rows.where("key is not null")
        .groupBy("space_id", "key")
        .agg(F.sort_array(F.collect_list(F.struct("seq", *others))).alias("events"))
    )
    known = stored.select(
        "space_id",
        "key",
        F.col("seq").alias("stored_seq"),
        F.col("row").alias("stored_row"),
        F.col("schema_version").alias("stored_version"),
    )
    ended = endings.groupBy("space_id").agg(F.collect_list(F.struct("up_to", "at")).alias("endings"))
    joined = grouped.join(known, ["space_id", "key"], "left").join(F.broadcast(ended), "space_id", "left")
    joined = joined.withColumn("endings", F.coalesce("endings", F.array().cast("array<struct<up_to:bigint,at:bigint>>")))
    is_new = "e.seq > coalesce(stored_seq, -1) and (i = 0 or e.seq <> events[i - 1].seq)"
    fresh = joined.withColumn("events", F.expr(f"filter(events, (e, i) -> {is_new})")).where("size(events) > 0")
    needs_python = F.expr(
        "exists(events, e -> e.patch is not null)"
        " or exists(events, e -> e.schema_version <> coalesce(stored_version, events[0].schema_version))"
        " or exists(events, e -> e.schema_version <> events[0].schema_version)"
    )
    members = ", ".join(f"'{name}', e.{name}" for name in _OF_EVENTS)
    slim = f"transform(events, e -> named_struct({members}))"
    fold = python_function(Fold(forms, skip_missing=skip_missing), _IMAGES)
    in_python = fold("space_id", "key", "stored_row", "stored_seq", "stored_version", F.expr(slim), "endings")
    before = f"if(e.op in ('c', 'r'), null, {_PREVIOUS})"
    native = F.expr(f"transform(events, (e, i) -> named_struct('op', e.op, 'before', {before}, 'after', e.after))")
    # One branch for each kind of key: in a single expression Spark would call Python for both.
    whole = fresh.where(~needs_python).withColumn("images", native)
    folded = fresh.where(needs_python).withColumn("images", in_python)
    events = whole.unionByName(folded).select("space_id", "key", F.expr("inline(arrays_zip(events, images))"))
    op = F.expr("if(images.op = 'u' and images.before is null, 'c', images.op)")
    kept = events.where("images.op is not null and not (images.op = 'd' and images.before is null)")
    values: dict[str, Any] = {"op": op, "before": F.col("images.before"), "after": F.col("images.after")}
    nothing = F.lit(None).cast("string")
    values |= dict.fromkeys(("patch", "upsert", "server_version"), nothing)
    columns = {
        name: values.get(name, F.col(name) if name in ("space_id", "key") else F.col(f"events.{name}")) for name in rows.columns
    }
    return kept.select(*(column.alias(name) for name, column in columns.items()))


def last_rows(whole: DataFrame) -> DataFrame:
    """Return the last row of each key among events with images, as STORED_SCHEMA."""
    last = F.max_by(F.struct("seq", F.col("after").alias("row"), "schema_version"), "seq").alias("last")
    return whole.where("key is not null").groupBy("space_id", "key").agg(last).select("space_id", "key", "last.*")


def newest(stored: DataFrame) -> DataFrame:
    """Return the newest row of each key from rows of STORED_SCHEMA."""
    # Of a row that has got another key, both versions have the same seq.
    order = F.struct("seq", "schema_version")
    last = F.max_by(F.struct("seq", "row", "schema_version"), order).alias("last")
    return stored.groupBy("space_id", "key").agg(last).select("space_id", "key", "last.*")


class _Image(NamedTuple):
    """A row between two changes."""

    text: str
    values: list[Any]
    version: int


class Fold:
    """Function that Spark's workers run on keys with patches: (key, stored row, events) → op, before and after of each event."""

    def __init__(self, forms: Mapping[tuple[int, int], Form], *, skip_missing: bool) -> None:
        """`forms` has the forms by space_id and schema_version."""
        self._forms = dict(forms)
        self._skip_missing = skip_missing

    def __call__(
        self,
        space_id: int,
        key: str,
        stored_row: str | None,
        stored_seq: int | None,
        stored_version: int | None,
        events: Sequence[Any],
        endings: Sequence[Any],
    ) -> list[tuple[str | None, str | None, str | None]]:
        """Return op, before and after of each event; an op of None stands for an event that is left out."""
        image = _image(stored_row, stored_version)
        seq = stored_seq
        found: list[tuple[str | None, str | None, str | None]] = []
        for event in events:
            if seq is not None and any(one["up_to"] >= seq and one["at"] < event["seq"] for one in endings):
                image = None
            form = self._form(space_id, key, event)
            before = None if image is None or event["op"] in "cr" else self._shown(image, event["schema_version"], form)
            is_patch = event["op"] == "u" and event["after"] is None
            if is_patch and image is None and event["upsert"] is None and self._skip_missing:
                found.append((None, None, None))
                continue
            version = event["schema_version"]
            image = self._patched(image, key, event, form) if is_patch else _image(event["after"], version)
            seq = event["seq"]
            found.append((event["op"], before, None if image is None else image.text))
        return found

    def _form(self, space_id: int, key: str, event: Any) -> Form:
        form = self._forms.get((space_id, event["schema_version"]))
        if form is None:
            raise JobError(
                f"The schema topic has no form of space {space_id} at schema_version {event['schema_version']}, which the change"
                f" of {key} at seq {event['seq']} needs. This topic must be compacted; its records must not be deleted by"
                " retention. The daemon writes a present form again, at its start or within a minute. It can't write former"
                f" forms: {_FROM_A_SNAPSHOT}."
            )
        return form

    @staticmethod
    def _shown(image: _Image, version: int, form: Form) -> str:
        """Return a row with the field names of the event's form."""
        return image.text if image.version == version else form.row_text(image.values)

    @staticmethod
    def _patched(image: _Image | None, key: str, event: Any, form: Form) -> _Image:
        if image is None:
            if event["upsert"] is not None:
                return _Image(event["upsert"], json_text.values(event["upsert"]), event["schema_version"])
            raise JobError(
                f"The UPDATE of {key} in {form.space} at seq {event['seq']} has no row to apply to: the job started after the"
                f" row's last complete image, or the space's primary key was altered. To have all rows, {_FROM_A_SNAPSHOT}. With"
                " --missing-row skip such changes are left out."
            )
        carry_out = update if event["upsert"] is None else upsert
        try:
            values = carry_out(image.values, json_text.parse(event["patch"]), form, version_of(event["server_version"]))
        except PatchError as error:
            raise JobError(
                f"The UPDATE of {key} in {form.space} at seq {event['seq']} doesn't fit the stored row: {error}. The stored rows"
                f" have diverged from the stream: {_FROM_A_SNAPSHOT}."
            ) from error
        return _Image(form.row_text(values), values, event["schema_version"])


def _image(text: str | None, version: int | None) -> _Image | None:
    return None if text is None or version is None else _Image(text, json_text.values(text), version)
