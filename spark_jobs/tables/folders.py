"""Names of the tables of spaces: each space's name, written so that every file system accepts it and no two names collide.

    users            users               letters, digits, `_`, `-` and `.` stay as they are
    a/b              a~2fb               every other byte of the name's UTF-8 becomes ~ and two hexadecimal digits,
    ..               ~2e.                and so does a dot at the beginning
    _delta_log       ~5fdelta_log        and the first byte of a name that Delta or Spark uses itself
    300 letters      the first 180 ~~ the SHA-256 of the name

Names that differ only in upper and lower case are different spaces. On a file system that ignores case, they share one folder.

Catalogs are stricter: many accept only lower-case letters, digits and `_`. In a catalog (`catalog_name`) any other name therefore
gets a hash.
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
    """Return the folder name of a space's table. `own` names other folders in the same place, lower-case with a leading `_`."""
    if not space:
        return "~"
    name = space.encode("utf-8", "surrogatepass")
    written = _FOREIGN.sub(lambda found: b"~%02x" % ord(found[0]), name).decode("ascii")
    if space in _TAKEN or space.lower() in own:
        written = f"~{ord(space[0]):02x}{space[1:]}"
    if len(written) <= _BYTES_MAX:
        return written
    # In an unshortened name a hexadecimal digit follows each ~, so `~~` can't occur there.
    return f"{written[:_BEGINNING_BYTES]}~~{hashlib.sha256(name).hexdigest()}"


def catalog_name(name: str, own: Collection[str] = ()) -> str:
    """Return a name that catalogs accept: unchanged if it has only lower-case letters, digits and `_`, else with a hash appended.

    A name that is too long or already looks hashed gets a hash, too, and so does one that begins with a name in `own`, those of
    other tables in the same place.
    """
    is_plain = name and len(name) <= _CATALOG_LETTERS_MAX
    if is_plain and not (_FOREIGN_TO_CATALOGS.search(name) or _LOOKS_HASHED.search(name) or name.startswith(tuple(own))):
        return name
    hashed = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_FOREIGN_TO_CATALOGS.sub('_', name.lower())[:_CATALOG_LETTERS_MAX]}__{hashed}"
