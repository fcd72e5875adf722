"""The schemas of the records that this process reads: which ids it has met, and how values with them are read.

A batch is read by one plan, which must name the schemas of all its records. Which these are is only known when the records have
been read. So a plan names those that earlier batches had, and a record with another one ends the query with an error. Then the
batch's ids are read (`learn`), and the batch is repeated. That happens at a job's first batch, and after a change of a format.

A record that `from_avro` can't read ends the query, too. From then on records of its schema are converted in Python, which reads
decimals of any length, and says what is wrong with others (avro_records.py).

Each schema that a plan names costs driver work in every batch, whether the batch has records of it or not. So it names the newest
few; records of the others are converted in Python, which costs the same for one schema as for hundreds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_jobs.contract.avro_columns import Members, Reading, event_reading, key_reading
from spark_jobs.contract.avro_text import HEADER_BYTES, MAGIC, schema_id
from spark_jobs.contract.registry import Registry

NOT_MET: Final = "this plan lacks the schema of a record in Avro, or isn't one for JSON"
"""Error of a plan at a record of a kind that it doesn't know."""
NOT_READ: Final = "from_avro can't read a value with the schema "
"""Beginning of the error of a plan at a record that is left to Python; the id follows."""
PLANNED_MAX: Final = 8
"""Number of schemas of keys, and of values, that a plan names. Each costs some half a second of CPU in each batch."""
_ID_NOT_READ: Final = re.compile(rf"{NOT_READ}(\d+)")

_MET: Final[dict[Registry, Schemas]] = {}


@dataclass
class Schemas:
    """What has been met of a registry's schemas, by keys and values, and whether records without Avro were (`has_json`)."""

    registry: Registry
    texts: dict[int, str] = field(default_factory=dict)
    keys: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    left_to_python: set[int] = field(default_factory=set)
    has_json: bool = False

    @classmethod
    def of(cls, registry: Registry) -> Schemas:
        """Return those of this process, which grow with each batch."""
        return _MET.setdefault(registry, cls(registry))

    @property
    def extent(self) -> int:
        """How much has been met: it grows with all that makes another plan."""
        return len(self.keys) + len(self.values) + len(self.left_to_python) + self.has_json

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been met yet."""
        return not (self.values or self.has_json)

    def learn(self, heads: Iterable[tuple[bytes | bytearray | None, bytes | bytearray | None]]) -> None:
        """Meet records with these first bytes of their keys and values. Raises JobError and UnknownSchemaError."""
        for pair in heads:
            for head, met in zip(pair, (self.keys, self.values), strict=True):
                if head is None:
                    continue
                if head[:1] != bytes([MAGIC]) or len(head) < HEADER_BYTES:
                    self.has_json = True
                    continue
                number = schema_id(head)
                if number not in self.texts:
                    self.texts[number] = self.registry.schema(number)
                met.add(number)

    def learn_from(self, error: str) -> bool:
        """Return whether a plan that is made now may succeed where this error ended one, once the batch's ids have been read."""
        for number in _ID_NOT_READ.findall(error):
            self.left_to_python.add(int(number))
        return NOT_MET in error or NOT_READ in error

    def of_keys(self) -> tuple[Mapping[int, Reading], Sequence[int]]:
        """Return the readings of keys into the columns `column("key", id)`, and the ids of those that are left to Python."""
        return self._split(self.keys, lambda number: key_reading(self.texts[number], column("key", number)))

    def of_events(self, members: Members) -> tuple[Mapping[int, Reading], Sequence[int]]:
        """Return the readings of events into the columns `column("value", id)`, and the ids of those that are left to Python."""
        return self._split(self.values, lambda number: event_reading(self.texts[number], members, column("value", number)))

    def _split(self, met: set[int], read: Callable[[int], Reading | None]) -> tuple[Mapping[int, Reading], Sequence[int]]:
        readings: dict[int, Reading] = {}
        for number in sorted(met - self.left_to_python, reverse=True):
            if len(readings) < PLANNED_MAX and (reading := read(number)) is not None:
                readings[number] = reading
        return readings, sorted(met - readings.keys())


def column(side: str, number: int) -> str:
    """Return the name of the column with the structs of a schema."""
    return f"_{side}_{number}"


def head_of(number: int) -> str:
    """Return SQL for the first bytes of records with this schema."""
    return f"X'{(bytes([MAGIC]) + number.to_bytes(HEADER_BYTES - 1, 'big')).hex()}'"
