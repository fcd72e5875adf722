"""OpenSearch client of the job `search_index`: bulk writing with retries, and management of indexes and aliases."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as LostError
from opensearchpy.exceptions import TransportError
from opensearchpy.helpers import scan

from spark_jobs.errors import JobError
from spark_jobs.feeds import bulk
from spark_jobs.feeds.bulk import Action, IndexRefusedError, Refused

_TOO_LARGE: Final = 413
_DENIED: Final = (401, 403)
_BUSY: Final = (429, 502, 503, 504)
_INDEXES_PER_REQUEST: Final = 20
_BLOCKED: Final = "cluster_block_exception"
"""Error of a write to an index that is read-only for a while, for example because the disk is full; also a 403."""
FIELDS_MAX: Final = 1000
"""OpenSearch's default limit for the fields of an index."""
FIELDS_SETTING: Final = "index.mapping.total_fields.limit"
_SHOWN: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Address:
    """Address and credentials of OpenSearch. Spark's workers get a copy."""

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verifies: bool = True
    timeout_seconds: float = 60

    def connect(self) -> OpenSearch:
        """Return a client that doesn't retry."""
        tls: dict[str, Any] = {}
        if any(url.startswith("https:") for url in self.urls):
            tls = {
                "verify_certs": self.verifies,
                "ssl_show_warn": False,
                **({"ca_certs": self.ca_file} if self.ca_file else {}),
                **({"client_cert": self.certificate_file, "client_key": self.key_file} if self.certificate_file else {}),
            }
        login = {} if self.user is None else {"http_auth": (self.user, self.password or "")}
        return OpenSearch(list(self.urls), timeout=self.timeout_seconds, max_retries=0, http_compress=False, **login, **tls)


class Bulk(Protocol):
    """Function that sends the body of a bulk request, and returns the items of the response in order, or [] if all succeeded."""

    def __call__(self, body: str) -> Sequence[Mapping[str, Any]]: ...


def sender(client: OpenSearch) -> Bulk:
    """Return the function that sends requests to OpenSearch."""

    def send(body: str) -> Sequence[Mapping[str, Any]]:
        answer = client.bulk(body=body.encode("utf-8", "surrogatepass"), params={"filter_path": _SHOWN, "require_alias": "true"})
        return answer["items"] if answer["errors"] else []

    return send


class Writer:
    """Writer that retries documents until each is written, found to be older than the stored one, or refused."""

    def __init__(self, send: Bulk, patience_seconds: float, pause: Callable[[float], object] = time.sleep) -> None:
        """The writer gives up after waiting for `patience_seconds` without any progress."""
        self._send = send
        self._patience_seconds = patience_seconds
        self._pause = pause

    def write(self, actions: Sequence[Action]) -> list[Refused]:
        """Write the actions, and return the refused ones. Raises JobError."""
        refused: list[Refused] = []
        left = list(actions)
        waits = bulk.delays(self._patience_seconds)
        while left:
            instead: list[Action] = []
            again, reason = self._attempt(left, refused, instead)
            if len(again) < len(left):
                waits = bulk.delays(self._patience_seconds)
            left = again + instead
            if again:
                delay = next(waits, None)
                if delay is None:
                    raise JobError(
                        f"OpenSearch didn't accept {len(again)} documents in {self._patience_seconds:g} s (--patience-seconds): "
                        f"{reason}. Nothing is lost: start the job again when it does, and the job resumes here."
                    )
                # Vary the delay so that workers don't retry at the same time.
                self._pause(delay * random.uniform(0.5, 1))  # noqa: S311 - no secret
        return refused

    def _attempt(self, actions: list[Action], refused: list[Refused], instead: list[Action]) -> tuple[list[Action], str]:
        """Send once. Return the actions to send again, and the reason; `instead` gets older actions for the refused ones."""
        try:
            items = self._send(bulk.request(actions))
        except LostError as error:
            return actions, f"no answer ({error.error})"
        except TransportError as error:
            if _is_denied(error):
                raise _denied(error) from error
            if error.status_code != _TOO_LARGE:
                return actions, f"{error.status_code} {error.error}"
            if len(actions) == 1:
                refused.append(bulk.refuse(actions[0], "OpenSearch finds too large (413, http.max_content_length)"))
                instead += [one.older for one in actions if one.older is not None]
                return [], ""
            middle = len(actions) // 2
            first, why_first = self._attempt(actions[:middle], refused, instead)
            second, why_second = self._attempt(actions[middle:], refused, instead)
            return first + second, why_first or why_second
        if not items:
            return [], ""
        decision = bulk.decide(actions, items)
        if decision.missing is not None:
            raise JobError(
                f"OpenSearch has no {decision.missing} any more: somebody has removed the index or this alias. To build it "
                "again, start the job with a new --checkpoint."
            )
        refused += decision.refused
        instead += decision.instead
        return decision.again, decision.why_again


@dataclass(frozen=True)
class Index:
    """Actual state of an index."""

    name: str
    properties: Mapping[str, Any]
    meta: Mapping[str, Any]
    aliases: Mapping[str, Mapping[str, Any]]
    identity: str = ""
    """OpenSearch's id: another one if the index was made again."""
    fields_max: int = FIELDS_MAX


class Indexes:
    """Management of indexes and their aliases."""

    def __init__(self, client: OpenSearch, patience_seconds: float = 60, pause: Callable[[float], object] = time.sleep) -> None:
        """All requests use `client`. While OpenSearch is unavailable or busy, they are retried for `patience_seconds`."""
        self._pause = pause
        self._client = client
        self._patience_seconds = patience_seconds

    def patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Retry a repeatable request until it is answered."""
        waits = bulk.delays(self._patience_seconds)
        while True:
            try:
                return ask()
            except TransportError as error:
                if _is_denied(error):
                    raise _denied(error) from error
                is_passing = isinstance(error, LostError) or error.status_code in _BUSY or error.error == _BLOCKED
                if not is_passing:
                    raise
                delay = next(waits, None)
                if delay is None:
                    raise JobError(
                        f"OpenSearch gave no answer in {self._patience_seconds:g} s (--patience-seconds): {error.status_code} "
                        f"{error.error}. Nothing is lost: start the job again when it does, and the job resumes here."
                    ) from error
                self._pause(delay)

    def describe(self, names: Sequence[str]) -> dict[str, Index]:
        """Return those of the indexes that exist, by name."""
        found = {}
        for start in range(0, len(names), _INDEXES_PER_REQUEST):
            some = ",".join(names[start : start + _INDEXES_PER_REQUEST])
            shown = {"ignore_unavailable": "true", "expand_wildcards": "none"}
            answer = self.patiently(partial(self._client.indices.get, index=some, params=shown))
            for name, members in answer.items():
                mapping = members["mappings"]
                meta = mapping.get("_meta", {}).get("tarantool_cdc", {})
                settings = members["settings"]["index"]
                limit = int(settings.get("mapping", {}).get("total_fields", {}).get("limit", FIELDS_MAX))
                found[name] = Index(name, mapping.get("properties", {}), meta, members["aliases"], settings["uuid"], limit)
        return found

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create an index, unless an index of this name exists. Raises IndexRefusedError."""
        try:
            self.patiently(lambda: self._client.indices.create(index=name, body=dict(body)))
        except TransportError as error:
            if error.error != "resource_already_exists_exception":
                raise IndexRefusedError(f"OpenSearch refuses to create the index {name}: {_reason(error)}") from error

    def put_mapping(self, name: str, body: Mapping[str, Any]) -> None:
        """Add properties, or replace `_meta`. Raises IndexRefusedError."""
        try:
            self.patiently(lambda: self._client.indices.put_mapping(index=name, body=dict(body)))
        except TransportError as error:
            raise IndexRefusedError(f"OpenSearch refuses to change the mapping of {name}: {_reason(error)}") from error

    def put_settings(self, name: str, settings: Mapping[str, Any]) -> None:
        """Change settings of an index. Raises IndexRefusedError."""
        try:
            self.patiently(lambda: self._client.indices.put_settings(index=name, body=dict(settings)))
        except TransportError as error:
            raise IndexRefusedError(f"OpenSearch refuses to change the settings of {name}: {_reason(error)}") from error

    def change_aliases(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Change aliases in one request, atomically for searches. Raises JobError."""
        if actions:
            try:
                self.patiently(lambda: self._client.indices.update_aliases(body={"actions": list(actions)}))
            except TransportError as error:
                raise JobError(f"OpenSearch refuses to change aliases: {_reason(error)}") from error

    def matching(
        self, name: str, query: Mapping[str, Any], *, has_source: bool = True
    ) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield matching documents as id, version and source, which is empty without `has_source`."""
        self.patiently(lambda: self._client.indices.refresh(index=name))
        asked = {"query": query, "version": True, "_source": has_source}
        for hit in scan(self._client, index=name, query=asked):
            yield hit["_id"], hit["_version"], hit.get("_source", {})


def _is_denied(error: TransportError) -> bool:
    return error.status_code in _DENIED and error.error != _BLOCKED


def _denied(error: TransportError) -> JobError:
    return JobError(
        f"OpenSearch doesn't let the job write ({error.status_code} {error.error}). Give it --user and --password, "
        "and give the user the right to write to the indexes, and to create and change them and their aliases."
    )


def _reason(error: TransportError) -> str:
    causes = error.info.get("error", {}) if isinstance(error.info, dict) else {}
    root = (causes.get("root_cause") or [{}])[0] if isinstance(causes, dict) else {}
    return str(root.get("reason") or error.error)
