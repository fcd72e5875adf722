"""The form of a commit's message: `area: imperative`, at most 72 characters, and the reason below where it isn't plain.

Git runs this before each commit once the hooks are enabled (.github/CONTRIBUTING.md): `commit_message.py FILE`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_CHARACTERS_MAX = 72
_AREAS = r"[a-z][a-z0-9_.-]*(, [a-z][a-z0-9_.-]*)*"
_OF_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ")
_NOT_IMPERATIVE = re.compile(r"(?!embed|exceed|feed|need|seed|shed|speed|succeed|bring|ring|string)[a-z]+(ed|ing)")


def mistakes(message: str) -> list[str]:
    """What is wrong with a commit's message, in sentences."""
    subject, *body = [line for line in message.splitlines() if not line.startswith("#")] or [""]
    if subject.startswith(_OF_GIT):
        return []
    found = []
    if len(subject) > _CHARACTERS_MAX:
        found.append(f"The subject has {len(subject)} characters; {_CHARACTERS_MAX} are allowed.")
    form = re.fullmatch(rf"{_AREAS}: (\S+)( .*)?", subject)
    if form is None:
        found.append("The subject must be `area: imperative`, as in `stream: read a batch at once`.")
    elif form[2][0].isupper():
        found.append(f"Write {form[2]!r} in lower case.")
    elif _NOT_IMPERATIVE.fullmatch(form[2]):
        found.append(f"{form[2]!r} is no imperative.")
    if subject.endswith("."):
        found.append("The subject ends without a full stop.")
    if body and body[0].strip():
        found.append("An empty line must follow the subject.")
    return found


def main(arguments: list[str]) -> int:
    """Judge the message in a file."""
    found = mistakes(Path(arguments[0]).read_text(encoding="utf-8"))
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
