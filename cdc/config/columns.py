"""The section `[columns]`: which columns of rows are published, and which are masked."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, model_validator

from cdc.config.password_file import password_in
from cdc.config.section import Pattern, Section
from cdc.errors import ConfigurationError

SALT_CHARACTERS_MIN: Final = 16
_REMEDY: Final = "Take a random one, as from `openssl rand -hex 32`."


class ColumnsRule(Section):
    """What is published of the columns of some spaces."""

    spaces: Pattern
    """Regular expression that matches the spaces' complete names."""
    include: list[Pattern] = Field(default=[])
    """The published columns, beside those of the primary key; empty: all. This and all patterns below match complete names."""
    exclude: list[Pattern] = Field(default=[])
    """Columns that aren't published."""
    hash: list[Pattern] = Field(default=[])
    """Columns whose values are published as a salted hash."""
    truncate: dict[Pattern, int] = Field(default={})
    """Columns of whose values only so many characters are published."""
    mask: dict[Pattern, str] = Field(default={})
    """Columns that are published as a constant."""

    @model_validator(mode="after")
    def _says_something(self) -> ColumnsRule:
        if not (self.include or self.exclude or self.hash or self.truncate or self.mask):
            raise ValueError(
                f"the rule for spaces = {self.spaces!r} has no effect: give include, exclude, hash, truncate or mask"
            )
        for pattern, count in self.truncate.items():
            if count < 0:
                raise ValueError(f"truncate: {pattern!r} = {count} must be 0 at least")
        return self


class ColumnsSection(Section):
    """Columns that aren't published, or are masked."""

    salt: SecretStr | None = None
    """Secret with which values are hashed, 16 characters at least. Another salt makes other hashes."""
    salt_file: Path | None = None
    """File with the salt. One line end at the file's end is ignored."""
    rules: list[ColumnsRule] = Field(default=[])
    """The rules, one `[[columns.rules]]` each (see below). All rules that match a space apply to it."""

    @model_validator(mode="after")
    def _has_a_salt(self) -> ColumnsSection:
        if self.salt is not None and self.salt_file is not None:
            raise ValueError("salt and salt_file exclude each other")
        is_given = self.salt is not None or self.salt_file is not None
        if any(rule.hash for rule in self.rules) and not is_given:
            raise ValueError("hash in a rule needs salt_file or salt: without a secret, anybody could try all values")
        if self.salt is not None:
            problem = _too_short(self.salt, "salt")
            if problem:
                raise ValueError(f"{problem}. {_REMEDY}")
        return self

    def secret(self) -> bytes:
        """Return the salt; empty if there is none. Raises ConfigurationError if its file can't be read."""
        salt = self.salt
        if self.salt_file is not None and self.rules:
            salt, key = password_in(self.salt_file, "columns.salt_file"), "columns.salt_file"
            problem = _too_short(salt, key)
            if problem:
                raise ConfigurationError(problem, _REMEDY)
        return salt.get_secret_value().encode("utf-8", "surrogateescape") if salt is not None else b""

    def with_absolute_paths(self, directory: Path) -> ColumnsSection:
        """Return the section with its relative path resolved against `directory`."""
        return self if self.salt_file is None else self.model_copy(update={"salt_file": directory / self.salt_file})


def _too_short(salt: SecretStr, key: str) -> str:
    """Return what is wrong with a salt; empty if nothing is."""
    is_long = len(salt.get_secret_value()) >= SALT_CHARACTERS_MIN
    return "" if is_long else f"{key} must have {SALT_CHARACTERS_MIN} characters at least"
