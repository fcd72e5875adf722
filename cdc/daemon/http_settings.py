"""The daemon's listener, as its configuration wants it: rights, TLS, and what the page shows of the configuration."""

from __future__ import annotations

import os

from cdc.config import Config
from cdc.config.http import HttpSection
from cdc.errors import ConfigurationError
from cdc.ops.asking import Access
from cdc.ops.bounded_server import Certificate
from cdc.ops.http import StatusServer
from cdc.ops.rights import OWN_TOKEN, Rights, TokenSource, token_for
from cdc.ops.setup import Setup
from cdc.ops.view import View


def new_server(config: Config, view: View) -> StatusServer | None:
    """Return the server at http.listen; None if there is to be none.

    Raises ConfigurationError if the address, the certificate or the file of tokens can't be used.
    """
    http = config.http
    if http.address is None:
        return None
    return StatusServer(http.address, view, http.allowed_hosts, Rights.of(tokens_of(config)), certificate_of(http))


def access_of(config: Config) -> Access:
    """Return with what a command asks the daemon of this configuration."""
    source = tokens_of(config)
    is_own = source.token is None and source.file is None
    missing = source.own_file if is_own and not os.path.lexists(source.own_file) else None
    return Access(token_for(source), config.http.tls_certificate, missing)


def tokens_of(config: Config) -> TokenSource:
    """Return where the tokens are. All daemons of a fleet, and its process, have an own one together."""
    http = config.http
    directory = config.state.path if config.kafka.shard is None else config.state.path.parent
    token = http.token.get_secret_value() if http.token is not None else None
    return TokenSource(directory / OWN_TOKEN, token, http.tokens_file, http.view == "token")


def setup_of(config: Config) -> Setup:
    """Return what operators are shown of a configuration."""
    return Setup(
        shard=config.kafka.shard.name if config.kafka.shard is not None else None,
        kafka=config.kafka.bootstrap_servers,
        topic_prefix=config.kafka.topic_prefix,
        delivery=config.kafka.delivery,
        images=config.state.images,
        mode=config.source.mode,
        state_path=str(config.state.path),
        has_registry=config.format.needs_registry,
        ignored_origins=frozenset(config.source.exclude_origins),
    )


def certificate_of(http: HttpSection) -> Certificate | None:
    """Return the certificate for TLS; None for plain HTTP. Raises ConfigurationError if it can't be used."""
    if http.tls_certificate is None:
        return None
    try:
        return Certificate(http.tls_certificate, http.tls_key)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigurationError(
            f"http.tls_certificate or http.tls_key can't be used: {error.strerror if isinstance(error, OSError) else error}",
            "Name PEM files that belong together and that the daemon may read.",
        ) from error
