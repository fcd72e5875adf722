"""Who may do what over HTTP: roles, and the tokens that have them.

    view      status and metrics; anyone has it, unless http.view = "token"
    rows      the newest events of a space, and what the daemon's error quotes of rows
    operate   orders: a snapshot, its end or its pause

A client shows its token as `Authorization: Bearer TOKEN`. Tokens come from http.tokens_file, which is read again when it has
changed, and from http.token (the environment). A daemon without either makes one for itself, with all roles, in state.path:
whoever may read the daemon's files may use it, and so do the commands that ask a running daemon. It does so once it has its name:
before, state.path may be wrong, and a directory that is made there would look like the daemon's own at the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cdc.errors import ConfigurationError
from cdc.ops.file_state import state_of

Role = Literal["view", "rows", "operate"]
ROLES: Final[tuple[Role, ...]] = ("view", "rows", "operate")
OWN_TOKEN: Final = "http-token"  # noqa: S105 - the name of a file
"""Name of the file in state.path that has the token which a daemon has made for itself."""
TOKEN_CHARACTERS_MIN: Final = 16
_OWN_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 1024 * 1024
_OWNER_ONLY: Final = stat.S_IRUSR | stat.S_IWUSR


class TokenSource(NamedTuple):
    """Where the tokens are: one that is given, a file of them, or the daemon's own; and whether the view needs one."""

    own_file: Path
    token: str | None = None
    file: Path | None = None
    view_needs_token: bool = False


class Visitor(NamedTuple):
    """Whom a token belongs to, and what it may do."""

    name: str
    roles: frozenset[Role]


ANYONE: Final = Visitor("anyone", frozenset({"view"}))
NOBODY: Final = Visitor("nobody", frozenset())


class Rights:
    """The rights of one listener. Safe in any thread."""

    def __init__(self, visitors: Mapping[bytes, Visitor] | None = None, *, view_needs_token: bool = False) -> None:
        """`visitors` are the owners of fixed tokens, by the tokens' digests."""
        self._fixed = dict(visitors or {})
        self._without_token = NOBODY if view_needs_token else ANYONE
        self._file: Path | None = None
        self._read: Callable[[Path], dict[bytes, Visitor]] = read_tokens
        self._file_state: tuple[int, int, int] | None = None
        self._of_file: dict[bytes, Visitor] = {}

    @classmethod
    def of(cls, source: TokenSource) -> Rights:
        """Return those of the tokens; where none is given, of the daemon's own one, once it is there.

        Raises ConfigurationError if http.tokens_file can't be used.
        """
        fixed: dict[bytes, Visitor] = {}
        if source.token is not None:
            fixed[digest(source.token)] = Visitor("http.token", frozenset(ROLES))
        found = cls(fixed, view_needs_token=source.view_needs_token)
        if source.file is not None:
            found._of_file = read_tokens(source.file)
            found._file, found._file_state = source.file, state_of(source.file)
        elif source.token is None:
            found._file, found._read = source.own_file, _own_visitor
        return found

    def visitor(self, authorization: str | None) -> Visitor:
        """Return who sends this Authorization header. A token that isn't known has no rights at all."""
        if authorization is None:
            return self._without_token
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer":
            return NOBODY
        # Tokens are looked up by their digests, so the time that takes tells nothing about a token.
        key = digest(token.strip())
        self._read_again()
        return self._fixed.get(key) or self._of_file.get(key) or NOBODY

    def _read_again(self) -> None:
        """Read the file of tokens if it has changed. While it can't be read, nobody has the rights that it gave."""
        if self._file is None:
            return
        state = state_of(self._file)
        if state != self._file_state:
            tokens: dict[bytes, Visitor] = {}
            with contextlib.suppress(ConfigurationError):
                tokens = self._read(self._file)
            self._of_file, self._file_state = tokens, state


def digest(token: str) -> bytes:
    """Return what stands for a token in memory."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(file: Path) -> dict[bytes, Visitor]:
    """Read a file of tokens: a line for each, with a name, roles joined by commas, and the token. Raises ConfigurationError."""
    found: dict[bytes, Visitor] = {}
    for number, (name, roles, token) in enumerate(_lines(file), 1):
        wrong = sorted(set(roles) - set(ROLES))
        if wrong:
            raise _mistake(f"entry {number} has the role {wrong[0][:50]!r}; there are {', '.join(ROLES)}")
        if len(token) < TOKEN_CHARACTERS_MIN:
            raise _mistake(f"the token of entry {number} is shorter than {TOKEN_CHARACTERS_MIN} characters")
        if digest(token) in found:
            raise _mistake(f"the token of entry {number} is that of an entry before it")
        # Whoever may see rows or give orders has to see the page where that is done.
        found[digest(token)] = Visitor(name, frozenset(role for role in ROLES if role in roles or role == "view"))
    return found


def token_for(source: TokenSource) -> str | None:
    """Return the token with which a command asks the daemon; None if there is none, or it can't be read."""
    if source.token is not None:
        return source.token
    if source.file is not None:
        with contextlib.suppress(ConfigurationError):
            entries = sorted(_lines(source.file), key=lambda entry: "operate" not in entry[1])
            return entries[0][2] if entries else None
        return None
    try:
        return _own_token_in(source.own_file) or None
    except (OSError, ValueError):
        return None


def _lines(file: Path) -> list[tuple[str, list[str], str]]:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_FILE_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it isn't UTF-8"
        raise ConfigurationError(f"http.tokens_file can't be read: {reason}", "Name a file that the daemon may read.") from None
    found: list[tuple[str, list[str], str]] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != len(("name", "roles", "token")):
            raise _mistake(f"entry {len(found) + 1} has {len(words)} words")
        found.append((words[0], words[1].split(","), words[2]))
    return found


def _mistake(sentence: str) -> ConfigurationError:
    """Return an error that doesn't quote the file, whose words may be tokens."""
    return ConfigurationError(
        f"http.tokens_file: {sentence}", "A line is: name roles token, as in `ann rows,operate 6f0c…` (openssl rand -hex 32)."
    )


def make_own_token(source: TokenSource) -> None:
    """Make the daemon's own token, unless it is there or others are given. Nobody has it if the directory can't be used."""
    if source.token is not None or source.file is not None:
        return
    file = source.own_file
    new = file.with_name(f"{OWN_TOKEN}.{os.getpid()}")
    try:
        found = _own_token_in(file)
        if not found:
            file.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
            if found is not None:
                file.unlink(missing_ok=True)  # a crash of the machine has left it without its contents
            new.touch(_OWNER_ONLY)
            new.write_text(f"{secrets.token_hex(_OWN_BYTES)}\n")
            # Of several processes that begin at once, the first one's token counts; where there are no links, the last one's.
            try:
                os.link(new, file)
                new.unlink()
            except FileExistsError:
                new.unlink()
            except OSError:
                new.replace(file)
    except (OSError, ValueError):
        return


def _own_visitor(file: Path) -> dict[bytes, Visitor]:
    try:
        found = _own_token_in(file)
    except (OSError, ValueError):
        found = None
    return {digest(found): Visitor("the daemon's own token", frozenset(ROLES))} if found else {}


def _own_token_in(file: Path) -> str | None:
    """Return the token that a daemon has made; "" if the file has none, None if it is missing. Raises OSError or ValueError."""
    try:
        found = file.read_text().strip()
    except FileNotFoundError:
        return None
    return found if len(found) >= TOKEN_CHARACTERS_MIN else ""
