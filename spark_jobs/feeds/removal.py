"""Removal of documents that searches no longer find: what a truncation has removed, and old marks of deleted rows.

The removal goes on beside the batches, because searches don't depend on it. Each document is deleted with its own version. The
job's own deletes therefore never touch a newer document, and leave no version behind that a later event would be compared with:
after `_delete_by_query`, OpenSearch would refuse an event whose `seq` is the next one after the deleted document's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from opensearchpy.exceptions import NotFoundError

from spark_jobs.feeds.bulk import Action, Place
from spark_jobs.feeds.opensearch import Address, Indexes, Writer, sender

_AT_ONCE: Final = 5000
_NOWHERE: Final = Place("", 0, 0)
"""Place of a removal, which no record of Kafka asks for."""


class Removals:
    """Removals that a thread carries out one after another. After a failure or a kill, the next start asks for them again."""

    def __init__(self, address: Address, patience_seconds: float) -> None:
        """Connect to OpenSearch at the first removal."""
        self._address = address
        self._patience_seconds = patience_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="removal")
        self._lock = threading.Lock()
        self._pending: list[Future[None]] = []
        self._is_closed = threading.Event()

    def ask(self, index: str, alias: str, query: Mapping[str, Any]) -> None:
        """Have the matching documents of an index deleted through its alias for writing."""
        with self._lock:
            self._pending.append(self._thread.submit(self._remove, index, alias, query))

    def check(self) -> None:
        """Raise the error of a removal that has failed."""
        with self._lock:
            done = [one for one in self._pending if one.done()]
            self._pending = [one for one in self._pending if not one.done()]
        for one in done:
            one.result()

    def finish(self) -> None:
        """Wait until everything is removed. Raises JobError."""
        with self._lock:
            pending, self._pending = self._pending, []
        for one in pending:
            one.result()

    def close(self) -> None:
        """End the removals where they are."""
        self._is_closed.set()
        self._thread.shutdown(cancel_futures=True)

    def _remove(self, index: str, alias: str, query: Mapping[str, Any]) -> None:
        client = self._address.connect()
        indexes = Indexes(client, self._patience_seconds, self._is_closed.wait)
        writer = Writer(sender(client), self._patience_seconds, self._is_closed.wait)

        def remove() -> None:
            found = indexes.matching(index, query, has_source=False)
            actions = (Action(alias, identity, version, None, _NOWHERE, "external_gte") for identity, version, _ in found)
            for some in _groups(actions):
                if self._is_closed.is_set():
                    return
                writer.write(some)

        try:
            indexes.patiently(remove)
        except NotFoundError:
            pass  # the index doesn't exist any more, nor do its documents
        finally:
            client.close()


def _groups(actions: Iterable[Action]) -> Iterator[list[Action]]:
    iterator = iter(actions)
    while some := list(islice(iterator, _AT_ONCE)):
        yield some
