"""What the topics beside the spaces' tell: the forms of spaces, and which snapshots are complete.

Kept beside the table of events, in `_control`, so that who reads the lake needs no Kafka. Both topics are small, and are written
there whole whenever there is something new in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql import Row, SparkSession

from spark_jobs import tables
from spark_jobs.codegen import interpreting
from spark_jobs.control_topics import Completed, completed
from spark_jobs.forms import Forms
from spark_jobs.lake import delta_log

KINDS: Final = ("schema", "snapshot")
"""The control topics, without their prefix."""

_COLUMNS: Final = "kind string, position bigint, value string"


class Control:
    """All that the control topics have told so far."""

    def __init__(self, schema: Iterable[str], snapshot: Iterable[str]) -> None:
        """The values of both topics, in order. Raises JobError for what is no record of them."""
        self.forms = Forms("<prefix>.schema", schema)
        self.completed: Sequence[Completed] = completed(snapshot, "<prefix>.snapshot")

    @property
    def last_seq(self) -> int:
        """The highest seq that a record tells of."""
        return max((self.forms.last_seq, *(ended.seq for ended in self.completed)))

    def swept(self, space_id: int, up_to: int) -> int:
        """The seq up to which a space's rows were gone at a seq, as completed snapshots told; -1 if none has told any.

        By the space's id: its name may have been another space's before, with sweeps of its own.
        """
        known = (ended for ended in self.completed if ended.seq <= up_to)
        return max((sweep.up_to for ended in known for sweep in ended.sweeps if sweep.space_id == space_id), default=-1)


_READ: Final[dict[str, tuple[tuple[str, int], Control]]] = {}
"""What each table told when it was read last: it changes seldom, and readers come often."""


class ControlTable:
    """The records of the control topics in the lake."""

    def __init__(self, session: SparkSession, changes_path: str) -> None:
        """`changes_path` is that of the table of events."""
        self._session = session
        self._path = f"{changes_path}/_control"

    def write(self, records: Iterable[tuple[str, int, str]]) -> None:
        """Put all records (kind, position in the topic, value) in the place of those that are there."""
        frame = self._session.createDataFrame(list(records), _COLUMNS)
        frame.coalesce(1).write.format("delta").mode("overwrite").save(self._path)

    def read(self) -> Control:
        """What they tell. Raises JobError."""
        state = delta_log.state(self._session, self._path)
        if state is None:
            return Control((), ())
        known = _READ.get(self._path)
        if known is None or known[0] != state.identity:
            rows = tables.read(interpreting(self._session), self._path, state.version).collect()
            known = _READ[self._path] = state.identity, Control(*(_values(rows, kind) for kind in KINDS))
        return known[1]


def _values(rows: Sequence[Row], kind: str) -> list[str]:
    return [row["value"] for row in sorted(rows, key=lambda row: int(row["position"])) if row["kind"] == kind]
