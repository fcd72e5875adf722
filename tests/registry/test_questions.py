"""What the daemon asks of a registry: the same of the one in this process and of a real one."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from cdc.config.formats import RegistrySection
from cdc.errors import ConfigurationError
from cdc.formats.options import Registration
from cdc.registry.questions import Questions, RegistryRefusal
from tests.fakes.registry import FakeRegistry


class HasUrl(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.live)])
def any_registry(request: pytest.FixtureRequest) -> Iterator[HasUrl]:
    if request.param == "real":
        yield request.getfixturevalue("registry")
    else:
        with FakeRegistry() as fake:
            yield fake


def record(*fields: tuple[str, Any], name: str = "Value") -> str:
    """A schema; a field of the type null is optional."""
    shown = [
        {"name": field, "type": ["null", "string"], "default": None} if kind is None else {"name": field, "type": kind}
        for field, kind in fields
    ]
    return json.dumps({"type": "record", "name": name, "namespace": "shop.users", "fields": shown, "connect.name": "x"})


def questions(registry: HasUrl, **changed: Any) -> Questions:
    return Questions({"url": registry.url}, **{"auto_register": True, **changed})


def subject() -> str:
    return f"shop.{uuid4().hex}-value"


def test_a_schema_is_registered_once(any_registry: HasUrl) -> None:
    asked, wanted = questions(any_registry), Registration(subject(), "AVRO", record(("id", "long")))
    assert asked.known_id_of(wanted) is None
    found = asked.id_of(wanted)
    assert asked.known_id_of(wanted) == found
    assert questions(any_registry).id_of(wanted) == found
    assert asked.id_of(Registration(subject(), "AVRO", wanted.text)) == found, "the same schema has one id under all subjects"


def test_a_compatible_change_is_registered(any_registry: HasUrl) -> None:
    asked, name = questions(any_registry), subject()
    first = asked.id_of(Registration(name, "AVRO", record(("id", "long"))))
    second = asked.id_of(Registration(name, "AVRO", record(("id", "long"), ("name", None))))
    assert second != first
    third = asked.id_of(Registration(name, "AVRO", record(("id", "long"))))
    assert third == first, "a former version is found again"


@pytest.mark.parametrize("fields", [[("id", "string")], [("id", "long"), ("name", "string")]])
def test_an_incompatible_change_is_refused_before_it_is_registered(any_registry: HasUrl, fields: list[tuple[str, Any]]) -> None:
    asked, name = questions(any_registry), subject()
    asked.id_of(Registration(name, "AVRO", record(("id", "long"))))
    changed = Registration(name, "AVRO", record(*fields))
    with pytest.raises(RegistryRefusal, match=f"'{name}' isn't compatible with its latest version") as refusal:
        asked.id_of(changed)
    assert refusal.value.reason == "incompatible"
    assert asked.known_id_of(changed) is None
    if isinstance(any_registry, FakeRegistry):
        assert any_registry.requests.count(f"POST /subjects/{name}/versions") == 1


def test_a_schema_must_be_there_if_it_is_not_to_be_registered(any_registry: HasUrl) -> None:
    wanted = Registration(subject(), "AVRO", record(("id", "long")))
    asked = questions(any_registry, auto_register=False)
    with pytest.raises(RegistryRefusal, match="auto_register is false") as refusal:
        asked.id_of(wanted)
    assert (refusal.value.reason, refusal.value.schema) == ("missing", wanted.text)
    assert wanted.text not in refusal.value.sentence, "a schema of kilobytes would fill the status"
    found = questions(any_registry).id_of(wanted)
    assert asked.id_of(wanted) == found


def test_json_schemas_are_registered_too(any_registry: HasUrl) -> None:
    name = subject()

    def document(*fields: str) -> Registration:
        shown = {field: {"oneOf": [{"type": "null"}, {"type": "string"}]} for field in fields}
        whole = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": "x", "properties": shown}
        return Registration(name, "JSON", json.dumps(whole | {"additionalProperties": False}))

    asked = questions(any_registry)
    first = asked.id_of(document("a"))
    assert asked.id_of(document("a", "b")) != first
    assert asked.id_of(document("a")) == first


def test_protobuf_is_registered_too(any_registry: HasUrl) -> None:
    name = subject()

    def file(*fields: str) -> Registration:
        lines = [f"  optional string {field} = {number};" for number, field in enumerate(fields, 1)]
        return Registration(
            name, "PROTOBUF", "\n".join(['syntax = "proto3";', "package shop.users;", "message Value {", *lines, "}"])
        )

    asked = questions(any_registry)
    first = asked.id_of(file("a"))
    assert asked.id_of(file("a", "b")) != first
    assert asked.id_of(file("a")) == first


def test_a_schema_that_is_none_is_refused(any_registry: HasUrl) -> None:
    if isinstance(any_registry, FakeRegistry):
        any_registry.failure = (422, {"error_code": 42201, "message": "Invalid Avro schema"})
    with pytest.raises(RegistryRefusal, match=r"refuses the schema of the subject|isn't compatible|fails") as refusal:
        questions(any_registry).id_of(Registration(subject(), "AVRO", '{"type":"rekord"}'))
    assert refusal.value.reason == "refused"


# What goes wrong on the way.


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry(user="cdc:secret") as started:
        yield started


WANTED = Registration("shop.users-value", "AVRO", record(("id", "long")))


def signed_in(fake: FakeRegistry, **changed: Any) -> Questions:
    return Questions({"url": fake.url, "basic.auth.user.info": "cdc:secret"}, **{"auto_register": True, **changed})


def test_who_may_not_ask_is_told(fake: FakeRegistry) -> None:
    with pytest.raises(RegistryRefusal, match=r"check format\.registry\.user") as refusal:
        Questions({"url": fake.url}, auto_register=True).id_of(WANTED)
    assert refusal.value.reason == "forbidden"
    assert signed_in(fake).id_of(WANTED) == 1


def test_a_registry_that_is_away(fake: FakeRegistry) -> None:
    asked = signed_in(fake)
    fake.stop()
    with pytest.raises(RegistryRefusal, match="can't be reached") as refusal:
        asked.id_of(WANTED)
    assert refusal.value.reason == "away"
    fake.start()
    assert asked.id_of(WANTED) == 1


def test_a_registry_that_fails(fake: FakeRegistry) -> None:
    asked = signed_in(fake)
    fake.failure = (503, {"error_code": 50301, "message": "not now"})
    with pytest.raises(RegistryRefusal, match="fails: not now") as refusal:
        asked.id_of(WANTED)
    assert refusal.value.reason == "away"


def test_a_call_has_a_deadline(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = signed_in(fake, call_seconds=0.2)
    # The client's own time limit doesn't always help, so here it doesn't.
    monkeypatch.setattr("confluent_kafka.schema_registry.SchemaRegistryClient.lookup_schema", _hang)
    begun = time.monotonic()
    with pytest.raises(RegistryRefusal, match=r"doesn't answer within 0\.2 s"):
        asked.id_of(WANTED)
    assert time.monotonic() - begun < 5
    monkeypatch.undo()
    assert asked.id_of(WANTED) == 1


def _hang(*_: object) -> None:
    time.sleep(3)


def test_settings_that_the_client_does_not_take_are_told_without_secrets(tmp_path: Path) -> None:
    settings: Callable[..., dict[str, str]] = lambda **more: {"url": "http://127.0.0.1:1", **more}  # noqa: E731
    with pytest.raises(ConfigurationError, match="Unrecognized properties") as error:
        Questions(settings(**{"basic.auth.user.info": "cdc:secret", "no.such": "secret"}), auto_register=True)
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigurationError, match="client of the registry can't be made"):
        Questions(settings(**{"ssl.ca.location": str(tmp_path / "missing.pem")}), auto_register=True)


# What isn't a registry's answer.


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**32, 2**70, "7", "x", 1.5, True, [1], {}])
def test_an_id_that_no_registry_gives_is_refused(fake: FakeRegistry, number: object) -> None:
    """An event has four bytes for it."""
    fake.given_id = number
    asked = signed_in(fake)
    for _ in range(2):  # at its registration, and as a known one
        with pytest.raises(RegistryRefusal, match="doesn't answer as a registry of schemas does") as refusal:
            asked.id_of(WANTED)
        assert refusal.value.reason == "away"
    fake.given_id = None
    assert asked.id_of(WANTED) == 1


@pytest.mark.parametrize("auto_register", [True, False])
@pytest.mark.parametrize(
    ("status", "page"),
    [(200, b"<html>Sign in</html>"), (200, b""), (200, b"[]"), (200, b"null"), (302, b""), (404, b"<html>no such page</html>")],
)
def test_a_page_of_something_else_is_told_as_that(fake: FakeRegistry, auto_register: bool, status: int, page: bytes) -> None:
    """Not as a schema that is refused, or missing: no other schema would help."""
    fake.page = status, page
    with pytest.raises(RegistryRefusal, match=r"Check that format\.registry\.url is the address of one") as refusal:
        signed_in(fake, auto_register=auto_register).id_of(WANTED)
    assert refusal.value.reason == "away"


def test_a_long_page_is_not_shown_whole(fake: FakeRegistry) -> None:
    fake.page = 502, b"<html>bad gateway" + b" " * 1_000_000
    with pytest.raises(RegistryRefusal, match=r"fails: .*bad gateway") as refusal:
        signed_in(fake).id_of(WANTED)
    assert refusal.value.reason == "away"
    assert len(refusal.value.sentence) < 1_000


def test_a_registry_that_asks_to_come_later_is_asked_later(fake: FakeRegistry) -> None:
    fake.failure = (429, {"error_code": 42901, "message": "slow down"})
    with pytest.raises(RegistryRefusal, match="slow down") as refusal:
        signed_in(fake).id_of(WANTED)
    assert refusal.value.reason == "away"


def test_calls_to_a_server_that_never_ends_its_answer_do_not_pile_up() -> None:
    begun = threading.Event()

    def trickle(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                client.sendall(b" ")
                begun.set()
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the test has ended
                while True:
                    threading.Thread(target=trickle, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        asked = Questions({"url": f"http://127.0.0.1:{server.getsockname()[1]}"}, auto_register=True, call_seconds=0.3)
        for _ in range(3):
            begun.clear()
            with pytest.raises(RegistryRefusal, match=r"doesn't answer within 0\.3 s"):
                asked.id_of(WANTED)
            assert begun.is_set()
        deadline = time.monotonic() + 20
        while any(thread.name == "registry call" for thread in threading.enumerate()):
            assert time.monotonic() < deadline, "the calls go on"
            time.sleep(0.01)
        server.shutdown(socket.SHUT_RDWR)


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificate of an authority of one's own, `ca.pem`, and one that it has issued, `server.pem`."""
    directory = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=our own", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", "/CN=registry", "-keyout", "server.key", "-out", "server.csr")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
    issue = ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    openssl(*issue, "-days", "2", "-out", "server.pem")
    return directory


@pytest.fixture
def secured(authority: Path) -> Iterator[FakeRegistry]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    with FakeRegistry(user="cdc:secret", tls=context) as started:
        yield started


def test_a_registry_with_a_certificate_of_an_authority_of_ones_own(secured: FakeRegistry, authority: Path) -> None:
    section = RegistrySection.model_validate(
        {"url": secured.url, "user": "cdc", "password": "secret", "properties": {"ssl.ca.location": "ca.pem"}}
    )
    asked = Questions(section.with_absolute_paths(authority).client_settings(), auto_register=True)
    asked.reach()
    assert asked.id_of(WANTED) == asked.known_id_of(WANTED) == 1


def test_an_unknown_authority_is_told_with_what_to_do(secured: FakeRegistry) -> None:
    with pytest.raises(RegistryRefusal, match=r"ssl\.ca\.location in format\.registry\.properties") as refusal:
        signed_in(secured).id_of(WANTED)
    assert refusal.value.reason == "away"
    assert "secret" not in str(refusal.value)
