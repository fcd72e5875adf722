"""Ids of schemas: known ones at once, others when the registry has given them.

    pipeline ─ find(schema) ─▶ known id
                  │ none yet: the question is queued
                  ▼
              a thread of its own asks, again and again ─▶ id, or a reason to wait: shown in /status and /metrics

The thread also asks for the known ids again, now and then. A registry that has lost its data gives other ids, and readers could
not find the schemas of new events: then `check` raises an error, and the next connection writes the new ids.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

import structlog

from cdc.config.formats import FormatSection
from cdc.errors import ConnectionLostError
from cdc.formats.options import Registration
from cdc.registry.questions import Questions, Reason, RegistryRefusal

RETRY_SECONDS: Final = (0.2, 5.0)
"""First and longest pause between two questions for the same schema."""
RECHECK_SECONDS: Final = 15.0
"""Interval at which the ids in use are compared with the registry's."""
_CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class RegistryWait:
    """Rows that wait for the registry: the subject of their schema, the reason, and since when (time.monotonic).

    `schema` is there if somebody has to register it, or to make it another one.
    """

    subject: str
    reason: Reason
    sentence: str
    since: float
    schema: str = ""


class SchemaIdsChangedError(ConnectionLostError):
    """The registry has other ids for schemas in use; the next connection writes them."""


class SchemaIds:
    """The ids of one daemon's schemas. `find`, `wait` and `check` are for the daemon's thread."""

    def __init__(self, questions: Questions, *, recheck_seconds: float = RECHECK_SECONDS) -> None:
        self._questions = questions
        self._recheck_seconds = recheck_seconds
        self._log = structlog.get_logger()
        self._changed = threading.Condition()
        self._known: dict[Registration, int] = {}
        # By subject: the schema that was asked for last. Former ones may be deleted in the registry.
        self._current: dict[str, Registration] = {}
        self._wanted: Registration | None = None
        self._wanted_since = 0.0
        self._waiting: RegistryWait | None = None
        self._moved: str | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> RegistryWait | None:
        """Why `find` has returned None for the schema that is wanted."""
        return self._waiting

    def find(self, wanted: Registration) -> int | None:
        """Return the id of a schema; None until the registry has given it one."""
        with self._changed:
            found = self._known.get(wanted)
            if found is not None:
                self._current[wanted.subject] = wanted
                return found
            if self._wanted != wanted:
                self._wanted, self._wanted_since = wanted, time.monotonic()
                self._changed.notify_all()
            return None

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the wanted schema has an id, or the time has passed."""
        with self._changed:
            if self._wanted is not None:
                self._changed.wait(timeout_seconds)

    def forget(self) -> None:
        """Withdraw the question: nobody waits for its answer any more."""
        with self._changed:
            self._wanted = self._waiting = None

    def check(self) -> None:
        """Raise SchemaIdsChangedError once if the registry has other ids for schemas in use."""
        moved, self._moved = self._moved, None
        if moved is not None:
            raise SchemaIdsChangedError(moved)

    def close(self) -> None:
        """End the thread; a call that hangs is left to it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    # The thread.

    def _run(self) -> None:
        pause, (first, longest) = 0.0, RETRY_SECONDS
        recheck_at = time.monotonic() + self._recheck_seconds
        while True:
            with self._changed:
                if pause or self._wanted is None:
                    left = max(0.0, recheck_at - time.monotonic())
                    self._changed.wait(min(pause, left) if pause else left)
                if self._is_closed:
                    return
                wanted = self._wanted
            is_done = wanted is None or self._answer(wanted)
            pause = 0.0 if is_done else min(max(first, pause * 2), longest)
            if time.monotonic() >= recheck_at:
                self._recheck()
                recheck_at = time.monotonic() + self._recheck_seconds

    def _answer(self, wanted: Registration) -> bool:
        """Ask for the wanted schema; return whether it has an id now."""
        try:
            found = self._questions.id_of(wanted)
        except RegistryRefusal as refusal:
            if self._waiting is None or self._waiting.sentence != refusal.sentence:
                schema = {"schema": refusal.schema} if refusal.schema else {}
                self._log.warning("rows wait for the registry", subject=wanted.subject, reason=refusal.sentence, **schema)
            self._waiting = RegistryWait(wanted.subject, refusal.reason, refusal.sentence, self._wanted_since, refusal.schema)
            return False
        if self._waiting is not None:
            self._log.info("the registry has given the schema an id", subject=wanted.subject, id=found)
        with self._changed:
            self._known[wanted] = found
            self._wanted = self._waiting = None
            self._changed.notify_all()
        return True

    def _recheck(self) -> None:
        """Compare the ids in use with the registry's; ask again for those that it has lost."""
        with self._changed:
            used = [(wanted, self._known[wanted]) for wanted in self._current.values()]
        for wanted, known in used:
            if self._is_closed:
                return
            try:
                found = self._questions.known_id_of(wanted) or self._questions.id_of(wanted)
            except RegistryRefusal:
                return  # it is away; whoever needs a new schema says so
            if found != known:
                with self._changed:
                    # Those of former schemas may be other ones, too: a space may get its former format again.
                    kept = {one: self._known[one] for one in self._current.values() if one in self._known}
                    self._known = kept | {wanted: found}
                self._moved = (
                    f"the registry has the id {found} for the schema of the subject {wanted.subject!r}, which had {known}: it "
                    "has lost its data. Readers can't find the schemas of events with the former ids until it is restored"
                )


def of_configuration(section: FormatSection) -> SchemaIds | None:
    """Return the ids of the registry, if the formats need one. Raises ConfigurationError if its client can't be made."""
    if not section.needs_registry:
        return None
    return SchemaIds(Questions(section.registry.client_settings(), auto_register=section.registry.auto_register))
