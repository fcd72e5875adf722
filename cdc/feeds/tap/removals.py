"""Keys that were removed without an event that names them: clients that were filled before must be filled again.

A sweep after a snapshot, changes that are on no topic, a renamed space, and a store that began anew leave such keys. The records
of the snapshot and schema topics tell of them, on the reader's thread; `ControlEvents` brings them to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from cdc.feeds.tap.catching_up import call_soon
from cdc.feeds.tap.changes import Renaming, SpaceNames
from cdc.feeds.tap.session import ControlPosition, Session


@dataclass(frozen=True)
class ServedSpaces:
    """Which spaces are served, and to whom."""

    is_wanted: Callable[[str], bool]
    of_client: Callable[[str], SpaceNames | None]
    """Returns the spaces that a client of this name gets, or None if it gets all."""


class UnnamedRemovals:
    """What is known of such removals. All methods must be called on the event loop's thread."""

    def __init__(
        self, spaces: ServedSpaces, on_removal: Callable[[], None], forget: Callable[[], None], *, has_own_store: bool
    ) -> None:
        """`on_removal` is called when clients must look again, `forget` when all clients' keys have become unknown.

        With a store of its own, the server learns of sweeps and renamings from that store, once it has processed the record; all
        records are read again at each start.
        """
        self._spaces = spaces
        self._on_removal = on_removal
        self._forget = forget
        self._has_own_store = has_own_store
        self._log = structlog.get_logger()
        self.control = ControlPosition()
        self.renamed_version = 0
        """Version of the last renaming or reset. Clients filled from older rows (Rows.version) have keys that no event names."""
        self._renamings: list[Renaming] = []
        self.renamed_seq = -1
        """Seq of the last renaming."""

    def swept(self, seq: int, offset: int) -> None:
        """Record that keys up to `seq` may have been removed unnamed, as reported by the record before `offset`."""
        control = self.control
        if not self._has_own_store and (seq, offset) > (control.swept_seq, control.swept_offset):
            self.control = control._replace(swept_seq=seq, swept_offset=offset)
            self._on_removal()

    def lost(self, seq: int) -> None:
        """Record that changes up to `seq` are on no topic; the daemon's store has their results."""
        if not self._has_own_store:
            self._log.warning(
                "changes are missing on all topics: clients that were filled before are filled again from the daemon's store",
                seq=seq,
            )
            self.swept(seq, 0)

    def snapshots_read(self, offset: int) -> None:
        """Record that `swept` was called for all sweeps up to `offset`."""
        self.control = self.control._replace(offset=offset)

    def snapshots_missed(self, topic: str) -> None:
        """Handle sweeps that may have been missed: their records are no longer on the topic."""
        if not self._has_own_store:
            self._log.warning(
                "snapshot records expired or were deleted before they were read: earlier clients are filled again, "
                "because some of their keys may have been removed",
                topic=topic,
            )
            self._forget()
            self._on_removal()

    def renamed(self, renaming: Renaming) -> None:
        """Handle a renamed space."""
        is_wanted = self._spaces.is_wanted
        if renaming in self._renamings or not (is_wanted(renaming.former) or is_wanted(renaming.name)):
            return
        self._renamings.append(renaming)
        self.renamed_seq = max(self.renamed_seq, renaming.seq)
        if not self._has_own_store:
            self.renamed_version = max(self.renamed_version, renaming.version)
            self._on_removal()

    def store_was_reset(self, epoch: int) -> None:
        """Handle keys that the server's own store removed and that no event names."""
        self.renamed_version = max(self.renamed_version, epoch)
        self._on_removal()

    def needs_refill(self, session: Session) -> bool:
        """Whether the client has removed keys that no event names: it must be filled again."""
        control = self.control
        if session.is_reset or session.begun_seq < control.swept_seq:
            return True
        if session.begun_seq == control.swept_seq and session.begun_offset != control.swept_offset:
            return True
        return session.begun_version < self.renamed_version and self._has_other_names(session)

    def _has_other_names(self, session: Session) -> bool:
        """Whether a space that the client gets, or got, was renamed since the client was filled."""
        wanted = self._spaces.of_client(session.name)
        if wanted is None or self._has_own_store:  # the own store's versions aren't the schema's
            return True
        return any(
            one.version > session.begun_version and (one.former in wanted or one.name in wanted) for one in self._renamings
        )


class ControlEvents:
    """Forwarder of the reader thread's findings in the snapshot and schema topics to the event loop."""

    def __init__(self, removals: UnnamedRemovals, loop: asyncio.AbstractEventLoop, snapshots: str) -> None:
        """`snapshots` is the name of the snapshot topic."""
        self._removals = removals
        self._loop = loop
        self._snapshots = snapshots
        self.snapshots_offset = removals.control.offset

    def swept(self, seq: int, offset: int) -> None:
        call_soon(self._loop, self._removals.swept, seq, offset)

    def renamed(self, renaming: Renaming) -> None:
        call_soon(self._loop, self._removals.renamed, renaming)

    def lost(self, seq: int) -> None:
        call_soon(self._loop, self._removals.lost, seq)

    def snapshots_read(self, offset: int) -> None:
        self.snapshots_offset = offset
        call_soon(self._loop, self._removals.snapshots_read, offset)

    def snapshots_missed(self) -> None:
        call_soon(self._loop, self._removals.snapshots_missed, self._snapshots)
