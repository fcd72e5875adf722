"""Questions to a registry, with the API of Confluent's Schema Registry: which id a schema has, and whether it may be registered.

    is it there? ── yes ─▶ its id
        │ no
        ├─ auto_register = false ─▶ refused: missing
        ▼
    compatible with the subject's latest version? ── no ─▶ refused: incompatible
        │ yes, or the subject is new
        ▼
    register ─▶ its id

Each call has a deadline here, because a client was seen to hang for a quarter of an hour: a call that takes longer is left to its
thread, and the next one gets a new client.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

from cdc.errors import ConfigurationError
from cdc.formats.options import Registration

Reason = Literal["away", "missing", "incompatible", "forbidden", "refused"]
"""Why a schema has no id: as a label of a metric."""

CALL_SECONDS: Final = 10.0
"""Deadline of one call."""

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_DENIALS: Final = frozenset({401, 403, 407})
_LATER: Final = frozenset({408, 425, 429})
_REDIRECTS: Final = range(300, 400)
_SERVER_ERRORS: Final = 500
_NO_CODE: Final = -1
"""The client's `error_code` for an answer that isn't a registry's: not JSON, or without a code."""

_ID_MAX: Final = (1 << 31) - 1
"""Readers take the four bytes of an id for a number with a sign."""
_QUOTED_MAX: Final = 300
"""Maximum number of characters of a registry's words that are shown: a proxy may answer with a whole page."""

_MISSING: Final = object()

_T = TypeVar("_T")


class RegistryRefusal(Exception):  # noqa: N818 - a state in which the daemon waits
    """A registry that gives no id, with the reason, a sentence, and the schema if somebody has to do something about that."""

    def __init__(self, reason: Reason, sentence: str, schema: str = "") -> None:
        super().__init__(sentence)
        self.reason: Reason = reason
        self.sentence = sentence
        self.schema = schema


class Questions:
    """One registry, asked one question at a time."""

    def __init__(self, settings: Mapping[str, str], *, auto_register: bool, call_seconds: float = CALL_SECONDS) -> None:
        """`settings` are the client's. Raises ConfigurationError if it can't be made from them, or isn't installed."""
        self._settings = {**settings, "timeout": call_seconds, "max.retries": 0}
        self._auto_register = auto_register
        self._call_seconds = call_seconds
        self._url = settings["url"]
        self._library = _library()
        self._client: Any = self._new_client()

    def reach(self) -> None:
        """Raise RegistryRefusal if the registry doesn't answer this user."""
        self._ask(Registration("", "AVRO", ""), lambda client: client.get_subjects())

    def id_of(self, wanted: Registration) -> int:
        """Return the id of a schema, registering it if need be. Raises RegistryRefusal."""
        schema = self._library.Schema(wanted.text, wanted.kind)
        found = self._look_up(wanted, schema)
        if found is not None:
            return found
        if not self._auto_register:
            raise RegistryRefusal(
                "missing",
                f"the registry {self._url} doesn't have this schema under the subject {wanted.subject!r}, and "
                "format.registry.auto_register is false",
                wanted.text,
            )
        self._check_compatible(wanted, schema)
        return self._checked(self._ask(wanted, lambda client: client.register_schema(wanted.subject, schema)))

    def known_id_of(self, wanted: Registration) -> int | None:
        """Return the id that the registry has for a schema at present; None if it has none. Raises RegistryRefusal."""
        return self._look_up(wanted, self._library.Schema(wanted.text, wanted.kind))

    def _look_up(self, wanted: Registration, schema: Any) -> int | None:
        def look_up(client: Any) -> Any:
            client.clear_caches()
            try:
                return client.lookup_schema(wanted.subject, schema).schema_id
            except self._library.SchemaRegistryError as error:
                if _is_missing(error):
                    return _MISSING
                raise

        found = self._ask(wanted, look_up)
        return None if found is _MISSING else self._checked(found)

    def _checked(self, found: Any) -> int:
        """Return an id as the registry has given it. Raises RegistryRefusal for one that no registry gives."""
        if type(found) is int and 0 < found <= _ID_MAX:
            return found
        raise self._not_one(f"it gives a schema the id {found!r:.40}, and ids are numbers from 1 to {_ID_MAX}")

    def _not_one(self, what: str) -> RegistryRefusal:
        return RegistryRefusal(
            "away",
            f"{self._url} doesn't answer as a registry of schemas does: {what}. Check that format.registry.url is the address of "
            "one, and what is between it and the daemon",
        )

    def _check_compatible(self, wanted: Registration, schema: Any) -> None:
        def test(client: Any) -> bool:
            try:
                return bool(client.test_compatibility(wanted.subject, schema))
            except self._library.SchemaRegistryError as error:
                if _is_missing(error):  # the subject has no version yet
                    return True
                raise

        if not self._ask(wanted, test):
            raise self._incompatible(wanted)

    def _incompatible(self, wanted: Registration) -> RegistryRefusal:
        return RegistryRefusal(
            "incompatible",
            f"the registry {self._url} says that the new schema of the subject {wanted.subject!r} isn't compatible with its "
            "latest version. Either change the space's format so that it is (a new or renamed field is nullable, no field gets "
            "another type), or, if all readers can take the new schema, set another compatibility of this subject in the "
            "registry (NONE, until it is registered). The rows wait, and the daemon asks again by itself",
            wanted.text,
        )

    def _ask(self, wanted: Registration, question: Callable[[Any], _T]) -> _T:
        """Return the answer to a question. Raises RegistryRefusal."""
        try:
            return self._within_deadline(question)
        except self._library.SchemaRegistryError as error:
            raise self._refusal(wanted, error) from error
        except TimeoutError as error:
            # Without its connection the call ends: a server that sends a byte now and then would keep both for ever.
            with contextlib.suppress(Exception):  # its pool may say that the connection is in use
                self._client.close()
            self._client = self._new_client()
            raise RegistryRefusal("away", f"the registry {self._url} doesn't answer within {self._call_seconds:g} s") from error
        except OSError as error:
            raise self._unreachable(error) from error
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            # The client expects JSON, and certain fields in it.
            raise self._not_one("its answer can't be read") from error
        except Exception as error:  # the client has no common class for errors of the network
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> RegistryRefusal:
        text = (str(error) or type(error).__name__).rstrip(".")
        if "issuer certificate" in text or "self-signed" in text:
            text += ". Its authority belongs in a file that ssl.ca.location in format.registry.properties names"
        return RegistryRefusal(
            "away", f"the registry {self._url} can't be reached: {text}. Start it, or correct format.registry.url"
        )

    def _refusal(self, wanted: Registration, error: Any) -> RegistryRefusal:
        code, text = error.http_status_code, _excerpt(str(error.error_message))
        if code in _REDIRECTS or (code == _NOT_FOUND and error.error_code == _NO_CODE):
            told = "redirects the daemon" if code in _REDIRECTS else f"knows no such page ({text})"
            return self._not_one(f"it {told} (HTTP status {code})")
        if code == _CONFLICT:
            return self._incompatible(wanted)
        if code in _DENIALS:
            return RegistryRefusal(
                "forbidden",
                f"the registry {self._url} refuses this user ({text}): check format.registry.user and its password, and that the "
                f"user may read and register the subject {wanted.subject!r}",
            )
        if code >= _SERVER_ERRORS or code in _LATER:
            return RegistryRefusal("away", f"the registry {self._url} fails: {text} (HTTP status {code})")
        return RegistryRefusal(
            "refused",
            f"the registry {self._url} refuses the schema of the subject {wanted.subject!r}: {text} (HTTP status {code})",
        )

    def _within_deadline(self, question: Callable[[Any], _T]) -> _T:
        client, answers, errors = self._client, [], []

        def run() -> None:
            try:
                answers.append(question(client))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                errors.append(error)

        thread = threading.Thread(target=run, name="registry call", daemon=True)
        thread.start()
        thread.join(self._call_seconds)
        if thread.is_alive():
            raise TimeoutError
        if errors:
            raise errors[0]
        answer: _T = answers[0]
        return answer

    def _new_client(self) -> Any:
        problem = ""
        try:
            return self._library.SchemaRegistryClient(self._settings)
        except Exception as error:  # noqa: BLE001 - whatever the client finds wrong with its settings
            problem = f"{type(error).__name__}: {error}"
        # Outside of the handler: the client's errors may contain settings, and some of these are secrets.
        for setting in self._settings.values():
            if isinstance(setting, str) and setting:
                problem = problem.replace(setting, "…")
        raise ConfigurationError(
            f"the client of the registry can't be made: {problem}",
            "Check format.registry.properties, and the files that it names.",
        )


def _is_missing(error: Any) -> bool:
    """Return whether the registry itself says that it hasn't the subject, or the schema."""
    return bool(error.http_status_code == _NOT_FOUND and error.error_code != _NO_CODE)


def _excerpt(text: str) -> str:
    return text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}…"


def _library() -> Any:
    try:
        from confluent_kafka import schema_registry
    except ImportError as error:
        raise ConfigurationError(
            f"the client of a registry isn't installed ({error})", "Install the extra: pip install 'tarantool-cdc[registry]'."
        ) from error
    return schema_registry
