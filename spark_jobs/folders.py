"""What the table of a space is called among the others: its name, written so that every file system takes it and no two are one.

    users            users               letters, digits, `_`, `-` and `.` stay as they are
    a/b              a~2fb               every other byte of the name's UTF-8 is ~ and two hexadecimal digits,
    ..               ~2e.                as is a dot at the beginning
    _delta_log       ~5fdelta_log        and what Delta or Spark would take for its own
    300 letters      the first 180 ~~ the SHA-256 of the name

Names that differ only in upper and lower case are different spaces, and one folder on a file system that doesn't tell these
apart.

Catalogs are narrower: many take small letters, digits and `_` alone, so there (`catalog_name`) any other name gets a hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Final

_FOREIGN: Final = re.compile(rb"^\.|[^A-Za-z0-9._-]")
_TAKEN: Final = ("_delta_log", "_samples", "_spark_metadata")
_BYTES_MAX: Final = 255
_BEGINNING_BYTES: Final = 180

_FOREIGN_TO_CATALOGS: Final = re.compile(r"[^a-z0-9_]")
_LOOKS_HASHED: Final = re.compile(r"__[0-9a-f]{12}$")
_CATALOG_LETTERS_MAX: Final = 100


def folder(space: str, own: Collection[str] = ()) -> str:
    """The name of the folder that a space's table has; `own` are other folders there, in small letters with `_` in front."""
    if not space:
        return "~"
    name = space.encode("utf-8", "surrogatepass")
    written = _FOREIGN.sub(lambda found: b"~%02x" % ord(found[0]), name).decode("ascii")
    if space in _TAKEN or space.lower() in own:
        written = f"~{ord(space[0]):02x}{space[1:]}"
    if len(written) <= _BYTES_MAX:
        return written
    # Behind a single ~ there is always a digit, so this is no name written out.
    return f"{written[:_BEGINNING_BYTES]}~~{hashlib.sha256(name).hexdigest()}"


def catalog_name(name: str) -> str:
    """A name as catalogs take it: as it is if it has nothing but small letters, digits and `_`, else with a hash behind it."""
    if name and len(name) <= _CATALOG_LETTERS_MAX and not (_FOREIGN_TO_CATALOGS.search(name) or _LOOKS_HASHED.search(name)):
        return name
    hashed = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_FOREIGN_TO_CATALOGS.sub('_', name.lower())[:_CATALOG_LETTERS_MAX]}__{hashed}"
