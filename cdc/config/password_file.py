"""Reading of a file that holds a password."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from cdc.errors import ConfigurationError


def password_in(file: Path, key: str) -> SecretStr:
    """Return a file's contents without one line end at its end. Bytes that aren't UTF-8 are kept (as surrogate escapes).

    `key` is the key that names the file. A file with nothing but a line end is an empty password. Raises ConfigurationError, also
    if there is nothing at all. The error doesn't name the file, because the path may be a password in the wrong key.
    """
    problem = ""
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except (OSError, ValueError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or "that is not a file name"
    if problem:
        raise ConfigurationError(
            f"{key} can't be read: {problem}",
            "Name a file that this user may read; a relative path begins at the configuration file's directory.",
        )
    if not text:
        raise ConfigurationError(f"{key} is empty", "Put the password into it, or a line end alone if the password is empty.")
    return SecretStr(text.removesuffix("\n").removesuffix("\r"))
