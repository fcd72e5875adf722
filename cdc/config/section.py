"""Base class and validators that all sections of the configuration share."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

from cdc.config.member_uri import NUMBER, PORT_MAX

_LISTEN_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")


class Section(BaseModel):
    """A table of the configuration file."""

    # An unknown key is a misspelt key.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        meant = "; '.*' fits all names" if pattern == "*" else ""
        raise ValueError(f"{pattern!r} is not a regular expression: {error}{meant}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_regular_expression)]


def check_listen(name: str, text: str) -> None:
    """Check that `text`, the value of the key `name`, is empty or host:port. Raises ValueError if not."""
    host, _, port = text.rpartition(":")
    if text and not (_LISTEN_HOST.fullmatch(host) and NUMBER.fullmatch(port) and int(port) <= PORT_MAX):
        raise ValueError(f"{name} must be host:port, or empty to listen nowhere")


def address_of(text: str) -> tuple[str, int] | None:
    """Return host and port of an address; None if it is empty, which means not to listen."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if text else None
