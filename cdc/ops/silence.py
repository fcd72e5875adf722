"""A daemon whose process is there, and that doesn't answer: frozen by a signal, a debugger or a disk, or stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

SILENT_SECONDS: Final = 5.0
"""Time, in seconds, after which a daemon counts as silent: it tells each second that it is well."""
_STOPPED: Final = frozenset({"T", "t"})
_WAITS_FOR_DISK: Final = "D"
_PROCESSES: Final = Path("/proc")


class Silence(NamedTuple):
    """A sentence about a silent daemon, what to do, and whether it answers nothing at all: one that is stuck tells so."""

    sentence: str
    remedy: str
    is_complete: bool = True

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"sentence": self.sentence, "remedy": self.remedy}


def silence_in(found: Any) -> Silence | None:
    """Return what `to_json` has made an object of; None for another."""
    match found:
        case {"sentence": str(sentence), "remedy": str(remedy)}:
            return Silence(sentence, remedy)
        case _:
            return None


def silence_of(process_id: int, seconds: float, lifelessness: str | None, what_follows: str) -> Silence:
    """Return what to tell of a process that hasn't answered for some seconds.

    `lifelessness` is why it can't go on, as it says itself; `what_follows` is who ends it, or how to.
    """
    who = f"its process {process_id} has answered nothing for {seconds:.0f} s"
    if lifelessness is not None:
        return Silence(f"its process {process_id} can't go on: {lifelessness}", what_follows, is_complete=False)
    state = process_state(process_id)
    if state in _STOPPED:
        go_on = f"`kill -CONT {process_id}` lets it go on, if nobody is debugging it"
        return Silence(f"{who}: a signal, or a debugger, has stopped it", f"{go_on}. {what_follows}")
    if state == _WAITS_FOR_DISK:
        return Silence(f"{who}: the system has it wait for a disk", f"Look at the disks, and at the system's log. {what_follows}")
    return Silence(who, what_follows)


def process_state(process_id: int, processes: Path = _PROCESSES) -> str | None:
    """Return the letter by which the system says what a process of this machine does, as `ps` does; None if it doesn't say."""
    return next(iter(_stat(process_id, processes)), None)


def fleet_process_of(process_id: int, processes: Path = _PROCESSES) -> int | None:
    """Return the fleet's process that has started a daemon's, both of this machine; None if the daemon runs alone."""
    try:
        arguments = (processes / str(process_id) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    found = _stat(process_id, processes)
    return int(found[1]) if b"--supervised" in arguments and len(found) > 1 else None


def _stat(process_id: int, processes: Path) -> list[str]:
    """Return what the system says of a process behind the name of its program, which may contain anything: state, parent, …"""
    try:
        return (processes / str(process_id) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
