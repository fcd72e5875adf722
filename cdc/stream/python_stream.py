"""The Python path of one connection's rows, which is the specification of the compiled one.

    frames ─▶ Assembler ─▶ transactions ─▶ Limbo ─┬─▶ CatchUp, while the images are behind the published position
                                                  └─▶ Publication ─▶ batches

The compiled path (cdc.stream.compiled_stream) stands before it and passes on what it can't handle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdc.errors import SnapshotNeededError
from cdc.protocol.codec import Frames
from cdc.stream.batches.batch import Batch
from cdc.stream.catch_up import CatchUp
from cdc.stream.publication import Publication
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transactions.ahead import Ahead
from cdc.stream.transactions.assembler import Assembler
from cdc.stream.transactions.limbo import Limbo, is_control
from cdc.stream.transactions.transaction import Transaction


class PythonStream:
    """Handler of rows: groups them into transactions, and handles each as soon as it is certain."""

    def __init__(
        self,
        assembler: Assembler,
        limbo: Limbo,
        events: StreamEvents,
        publication: Publication,
        catch_up: CatchUp | None,
        ahead: Ahead,
    ) -> None:
        """`catch_up` is None if the images, if there are any, are at the published position."""
        self._assembler = assembler
        self._limbo = limbo
        self._events = events
        self._publication = publication
        self._catch_up = catch_up
        self._ahead = ahead

    @property
    def open_byte_count(self) -> int:
        """Size of the part of the unfinished transaction that waits here, in bytes."""
        return self._assembler.open_byte_count

    @property
    def catch_up(self) -> CatchUp | None:
        """The catching up of the images while it is under way."""
        catch_up = self._catch_up
        return None if catch_up is None or catch_up.is_over else catch_up

    def close(self) -> None:
        """Discard the unfinished transaction."""
        self._assembler.close()

    def feed(self, frames: Frames, suffix: bytes, *, are_certain: bool = False) -> Iterator[Batch]:
        """Process rows; yield full batches. If they `are_certain`, the limbo has released them."""
        yield from self._process(self._assembler.feed(frames), suffix, are_certain=are_certain)

    def end_open(self, suffix: bytes) -> Iterator[Batch]:
        """Process the unfinished transaction, as no row of it follows."""
        yield from self._process(self._assembler.end(), suffix)

    def _process(self, transactions: list[Transaction], suffix: bytes, *, are_certain: bool = False) -> Iterator[Batch]:
        for transaction in transactions:
            try:
                if are_certain and self._catch_up is not None:
                    yield from self._catch_up.apply(transaction, suffix)
                elif are_certain:
                    yield from self._publication.publish(transaction, suffix)
                elif self._catch_up is None:
                    for ready in self._certain(transaction):
                        yield from self._publication.publish(ready, suffix)
                else:
                    yield from self._arrive(self._catch_up, transaction, suffix)
            except SnapshotNeededError as error:
                error.place = self._events.place
                raise

    def _arrive(self, catch_up: CatchUp, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Handle what can be handled now that a transaction has arrived during the catching up.

        A control row that is set aside decides at once about the transactions in the limbo, and in its turn about those that
        were set aside before it.
        """
        ready: Iterable[Transaction] = ()
        if catch_up.is_over or catch_up.covers(transaction):
            ready = self._certain(transaction)
        else:
            origin = transaction.replica_id
            catch_up.set_aside(transaction, self._limbo.received.get(origin, self._events.vclock.get(origin, 0)))
            if is_control(transaction) and not self._limbo.is_empty:
                ready = self._decided(transaction)
        for each in ready:
            if not catch_up.is_over:
                is_last = yield from catch_up.apply(each, suffix)
                if is_last:
                    yield from self._publication.resume()
            else:
                yield from self._publication.publish(each, suffix)
        if catch_up.is_over:
            while self._ahead:
                for each in self._certain(self._ahead.take()):
                    yield from self._publication.publish(each, suffix)
            self._catch_up = None

    def _certain(self, transaction: Transaction) -> Iterable[Transaction]:
        """Return the transactions that are certain now, in order; `transaction` itself only if it is certain and new.

        The caller must handle each before it asks for the next.
        """
        limbo, origin = self._limbo, transaction.replica_id
        if transaction.lsn <= limbo.received.get(origin, self._events.vclock.get(origin, 0)):
            # It was received before.
            if transaction.spool is not None:
                transaction.spool.close()
            return ()
        if is_control(transaction):
            return self._control(transaction)
        return () if limbo.enqueue_if_waiting(transaction, self._events.now_us) else (transaction,)

    def _control(self, transaction: Transaction) -> Iterator[Transaction]:
        yield from self._decided(transaction)
        if self._limbo.advance_or_defer(transaction.replica_id, transaction.lsn):
            yield transaction

    def _decided(self, control: Transaction) -> Iterator[Transaction]:
        """Yield the transactions that a control row releases, in order.

        The position passes over rolled back transactions together with the control row, so no position lies between the two.
        """
        yield from self._limbo.apply(control)
        if freed := self._limbo.take_unblocked():
            self._events.jump(freed)
