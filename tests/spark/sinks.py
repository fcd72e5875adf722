"""Sinks as the jobs make them from their options, for tests with topics in memory."""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.current.job import CurrentSink
from spark_jobs.lake.changes import CHANGELOG, CHANGES_OF_READERS, ChangesSink, EventsSink
from spark_jobs.lake.event_table import AppendRules
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.merger import SHARE, SHARE_OF_BACKLOG, MergeRules
from spark_jobs.lake.positions import Positions
from spark_jobs.runner.unfit_counts import UnfitCounts
from spark_jobs.tables import delta
from spark_jobs.tables.folders import folder
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import Table


def folder_of(space: str) -> str:
    """The folder of a space's table in the lake."""
    return folder(space, ("_changes", "_watermark"))


def changelog_sink(
    session: SparkSession,
    path: Table,
    prefix: str = "shop",
    *,
    spaces: str = ".*",
    always: bool = False,
    known: TableFormat = delta,
) -> EventsSink:
    """The sink of `changelog`."""
    rules = AppendRules(looks_for_all=always)
    return EventsSink(session, Topics("k", prefix, spaces=spaces), path, layout=CHANGELOG, rules=rules, table_format=known)


def current_sink(
    session: SparkSession,
    topics: Topics,
    path: str | Location,
    positions: Positions,
    *,
    changes_path: str | None = None,
    is_background: bool = False,
    views: FreshViews | None = None,
    table_format: TableFormat = delta,
    unfit: UnfitCounts | None = None,
    **rules: Any,
) -> CurrentSink:
    """The sink of `current`: with a thread of its own for the merges, or as with --available-now."""
    place = Location(path=path, format=table_format) if isinstance(path, str) else path
    lake = Lake(session, place, changes_path)
    lake.check_changes(changes_path)
    changes = None
    if changes_path is None:
        layout = CHANGES_OF_READERS
        changes = ChangesSink(session, topics, lake.changes_table, positions, layout=layout, table_format=lake.format)
    when = {"share": SHARE} if is_background else {"share": SHARE_OF_BACKLOG, "interval_seconds": math.inf}
    merging = MergeRules(**{**when, **rules})
    return CurrentSink(lake, topics, positions, merging, changes=changes, is_background=is_background, views=views, unfit=unfit)
