"""Schemas by their ids, from a registry with the API of Confluent's Schema Registry.

The driver asks, and where records are converted in Python, each of Spark's workers. Each process asks once for an id, as an id's
schema never changes.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from time import sleep
from typing import Final

from spark_jobs.contract.other_formats import WHAT_JOBS_READ
from spark_jobs.errors import JobError


class UnknownSchemaError(Exception):
    """An id that the registry doesn't have. The text is a sentence for operators."""


_CALL_SECONDS: Final = 10.0
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 1.0
_NOT_FOUND: Final = 404
_SERVER_ERRORS: Final = 500
_DENIALS: Final = (401, 403)


@dataclass(frozen=True)
class Registry:
    """A registry's address, and what it takes to be let in."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    """A file with the certificates that are trusted. It must be there for the workers, too."""

    def schema(self, number: int) -> str:
        """Return the text of a schema. Raises UnknownSchemaError, and JobError if the registry refuses or stays away."""
        request = urllib.request.Request(f"{self.url.rstrip('/')}/schemas/ids/{number}")  # noqa: S310 - the operator's address
        if self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        context = ssl.create_default_context(cafile=self.ca_file) if self.url.startswith("https") else None
        for left in reversed(range(_TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=_CALL_SECONDS, context=context) as answer:  # noqa: S310
                    return self._avro(number, answer.read())
            except urllib.error.HTTPError as error:
                if error.code < _SERVER_ERRORS:
                    raise self._refused(number, error.code) from error
                reason = f"HTTP status {error.code}"
            except (OSError, ValueError) as error:
                reason = str(error)
            if left:
                sleep(_PAUSE_SECONDS)
        raise JobError(
            f"The registry {self.url} doesn't give the schema {number} of an event: {reason}. Check --registry, and that Spark's"
            " workers can reach it. Nothing is lost: the next start repeats the batch."
        )

    def _avro(self, number: int, body: bytes) -> str:
        answer = json.loads(body)
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise JobError(f"The schema {number} of an event is one of {kind}. {WHAT_JOBS_READ}")
        return str(answer["schema"])

    def _refused(self, number: int, code: int) -> JobError | UnknownSchemaError:
        if code in _DENIALS:
            return JobError(
                f"The registry {self.url} refuses this user (HTTP status {code}). Check --registry-user and --registry-password,"
                " and that the user may read schemas."
            )
        if code == _NOT_FOUND:
            return UnknownSchemaError(
                f"The registry {self.url} has no schema with the id {number}, which an event refers to. It isn't the registry of"
                " the daemon (--registry, format.registry.url), or it has lost its data: then restore it. Nothing is lost: the"
                " next start repeats the batch."
            )
        return JobError(f"The registry {self.url} refuses to give the schema {number} (HTTP status {code}).")
