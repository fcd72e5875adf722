"""The page's files, as they are on disk: HTML, CSS and JavaScript modules that a browser runs without any further step.

`page.html` is the frame of all pages; `daemon.html` and `fleet.html` are what they show in it.

The page asks no other host for anything, and the browser is told to refuse that (Content-Security-Policy). Nothing in these files
is a secret, so anybody may load them; what they show has to be asked for with a token, where one is needed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FRAME: Final = "page.html"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file's kind, its content, and the tag by which a browser asks whether it has changed."""

    kind: str
    content: bytes
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return all files by name."""
    folder = files("cdc.ops").joinpath("page")
    frame = folder.joinpath(_FRAME).read_bytes()
    found = {}
    for file in folder.iterdir():
        name, _, ending = file.name.rpartition(".")
        kind = _KINDS.get(f".{ending}")
        if kind is not None and file.name != _FRAME:
            content = file.read_bytes()
            if ending == "html":
                content = frame.replace(b"<!-- name -->", name.encode()).replace(b"<!-- main -->\n", content)
            found[file.name] = PageFile(kind, content, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found
