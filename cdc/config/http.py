"""The section `[http]`: the daemon's listener for its page, status and metrics, and who may use what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.config.section import Section, address_of, check_listen

_TOKEN: Final = re.compile(r"[!-~]{16,4096}")


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", text):
        raise ValueError("is not a host name; leave out the port and the scheme")
    return text


HostName = Annotated[str, AfterValidator(_host_name)]


class HttpSection(Section):
    """HTTP server for the page, status and metrics."""

    listen: str = "127.0.0.1:8085"
    """Address to listen on; empty: none. Rows and orders need a token; see `view` for the rest."""
    allowed_hosts: list[HostName] = Field(default=[])
    """Host names that requests may use, in addition to IP addresses, localhost and the host in `listen`."""
    view: Literal["anyone", "token"] = "anyone"
    """Who may see the page, status and metrics; rows aren't among them. `token`: only who has a token. `/health` and `/ready`
    never need one."""
    tokens_file: Path | None = None
    """File of tokens: a line for each, with a name, its roles and the token itself, as in `ann rows,operate 6f0c…`. The roles are
    `view`, `rows` (newest events) and `operate` (orders). A changed file is read again. Without tokens, the daemon makes one with
    all roles, in `http-token` in `state.path`."""
    token: SecretStr | None = None
    """A token with all roles; best given in the environment."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain. If it is set, the server accepts only TLS connections. A changed file is read
    again."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, if it isn't in `tls_certificate`."""

    @model_validator(mode="after")
    def _fits_together(self) -> HttpSection:
        check_listen("listen", self.listen)
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate")
        if self.token is not None and not _TOKEN.fullmatch(self.token.get_secret_value()):
            raise ValueError("token must have 16 characters or more, without spaces: openssl rand -hex 32")
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to listen on, or None."""
        return address_of(self.listen)

    def with_absolute_paths(self, directory: Path) -> HttpSection:
        """Return the section with its relative paths resolved against `directory`."""
        files = {"tokens_file": self.tokens_file, "tls_certificate": self.tls_certificate, "tls_key": self.tls_key}
        return self.model_copy(update={name: directory / file for name, file in files.items() if file is not None})
