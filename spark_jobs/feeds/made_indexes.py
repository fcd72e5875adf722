"""The indexes to which the batches of a checkpoint have written. Pure.

If such an index is gone, the job must not make it anew: its earlier rows would be missing, as Kafka's records of them have been
read. OpenSearch gives each index an id, so an index that somebody has made again or restored is recognized, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from spark_jobs.errors import JobError
from spark_jobs.feeds.opensearch import Index

FILE: Final = "tarantool_cdc_indexes.json"


class Noted(Protocol):
    """Notes that outlive the process (checkpoint.py)."""

    @property
    def is_new(self) -> bool:
        """Whether nothing has been noted yet."""

    @property
    def texts(self) -> Mapping[str, str]:
        """The notes by their names."""

    @property
    def place(self) -> str:
        """The path of the file."""

    def note(self, texts: Mapping[str, str]) -> None:
        """Add notes."""


class NoNotes:
    """Notes of a sink without a checkpoint."""

    def __init__(self) -> None:
        """Begin without notes."""
        self.is_new = True
        self.texts: dict[str, str] = {}
        self.place = "the notes"

    def note(self, texts: Mapping[str, str]) -> None:
        """See `Noted.note`."""
        self.texts.update(texts)
        self.is_new = False


class MadeIndexes:
    """Names and ids of these indexes, by the number of the space."""

    def __init__(self, notes: Noted) -> None:
        """Read the notes."""
        self._notes = notes

    def check(self, names: Mapping[int, str], found: Mapping[str, Index], *, is_first: bool) -> None:
        """Raise JobError unless every noted index is the one that is there.

        `names` are the indexes' names by space_id, for the spaces that are to be indexed. `is_first` tells that no batch of the
        checkpoint is done.
        """
        if self._notes.is_new and not is_first and names and not any(name in found for name in names.values()):
            raise self._lost(f"OpenSearch has no index {min(names.values())} any more, nor any other one of this job")
        for space_id, name in sorted(names.items()):
            noted = self._notes.texts.get(str(space_id))
            if noted is None:
                continue
            former, _, identity = noted.rpartition(" ")
            if former != name:
                raise JobError(
                    f"The batches of this checkpoint were written to the index {former}, and now they would be written to "
                    f"{name}, which would lack the earlier rows. Start the job with its former --index, or with a new "
                    "--checkpoint."
                )
            index = found.get(name)
            if index is None:
                raise self._lost(f"OpenSearch has no index {name} any more")
            if index.identity != identity:
                raise self._lost(f"The index {name} isn't the one to which this job wrote: somebody has made or restored it")

    def note(self, names: Mapping[int, str], found: Mapping[str, Index]) -> None:
        """Note the indexes of these spaces."""
        self._notes.note({str(space_id): f"{name} {found[name].identity}" for space_id, name in names.items()})

    def _lost(self, what: str) -> JobError:
        return JobError(
            f"{what}. It would lack the rows that earlier batches of this checkpoint wrote. To build all indexes of this job "
            "again, start it with a new --checkpoint. If you know that the index has all these rows, delete "
            f"{self._notes.place} instead."
        )
