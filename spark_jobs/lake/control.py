"""The contents of the control topics: the forms of spaces, and the completed snapshots.

They are kept beside the table of events, in `_control`, so that readers of the lake need no Kafka. Both topics are small. The job
writes all of their records again whenever a topic has new ones. A start without new ones writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.control_topics import Completed, completed, started
from spark_jobs.contract.forms import Forms
from spark_jobs.contract.scales import Scales, unused, with_scales
from spark_jobs.contract.source import Topics
from spark_jobs.runner.output import tell
from spark_jobs.tables.codegen import interpreting
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import Table, beside

KINDS: Final = ("schema", "snapshot")
"""The control topics, without their prefix."""

_COLUMNS: Final = "kind string, position bigint, value string"


class Control:
    """Contents of the control topics so far."""

    def __init__(self, schema: Iterable[str], snapshot: Iterable[str]) -> None:
        """Read the values of both topics, in order. Raises JobError for a value that isn't a record of its topic."""
        self.forms = Forms("<prefix>.schema", schema)
        texts = list(snapshot)
        self.completed: Sequence[Completed] = completed(texts, "<prefix>.snapshot")
        self.started: Sequence[int] = started(texts)

    @property
    def last_seq(self) -> int:
        """The highest seq in a record, -1 if there is none."""
        return max((self.forms.last_seq, *(ended.seq for ended in self.completed)))

    def swept(self, space_id: int, up_to: int) -> int:
        """Return the seq up to which snapshots completed by `up_to` have swept a space's rows; -1 if none has.

        The space is identified by its id, because another space, with its own sweeps, may have had its name before.
        """
        known = (ended for ended in self.completed if ended.seq <= up_to)
        return max((sweep.up_to for ended in known for sweep in ended.sweeps if sweep.space_id == space_id), default=-1)


Record = tuple[str, int, str]
"""Kind, position in the topic, and value."""


def scaled_records(records: Iterable[Record], scales: Scales, *, is_first: bool) -> list[Record]:
    """Return the records with the scales that a job was told; the `is_first` time, tell which of these belong to no decimal."""
    found = list(records)
    if is_first and (names := unused((text for kind, _, text in found if kind == "schema"), scales)):
        tell(f"--decimal-scale: no space has such a decimal so far: {', '.join(names)}")
    return [(kind, place, with_scales(text, scales) if scales and kind == "schema" else text) for kind, place, text in found]


@dataclass(frozen=True)
class _Read:
    """A version of a table, with its records in order."""

    identity: tuple[str, int]
    records: list[Record]

    @cached_property
    def control(self) -> Control:
        """What the records say. Raises JobError for one that isn't a record of its topic."""
        return Control(*([value for found, _, value in self.records if found == kind] for kind in KINDS))


_READ: Final[dict[Table, _Read]] = {}
"""Cache of each table's contents. The tables change rarely, but are read often."""


class ControlTable:
    """Table with the records of the control topics."""

    def __init__(self, session: SparkSession, changes: Table, table_format: TableFormat) -> None:
        """Name the table. `changes` is the table of events."""
        self._session = session
        self._format = table_format
        self.path = beside(changes, "_control")

    def write(self, records: Iterable[Record]) -> None:
        """Replace the table's records with these, unless it has just these."""
        new = sorted(records)
        if (known := self._read()) is not None and known.records == new:
            return
        frame = self._session.createDataFrame(new, _COLUMNS)
        self._format.overwrite(frame.coalesce(1), self.path)

    def read(self) -> Control:
        """Return the contents of the control topics. Raises JobError."""
        known = self._read()
        return Control((), ()) if known is None else known.control

    def _read(self) -> _Read | None:
        """Return the table's present contents; None if there is no table."""
        state = self._format.state(self._session, self.path)
        if state is None:
            return None
        known = _READ.get(self.path)
        if known is None or known.identity != state.identity:
            rows = self._format.read(interpreting(self._session), self.path, state.version).collect()
            records = sorted((row["kind"], row["position"], row["value"]) for row in rows)
            known = _READ[self.path] = _Read(state.identity, records)
        return known


def without_control(records: DataFrame, topics: Topics) -> DataFrame:
    """Return the records of the spaces' topics."""
    return records.where(~F.col("topic").isin(*topics.controls(KINDS)))
