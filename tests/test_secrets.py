"""No secret comes out of the configuration, wherever it stands and whatever is wrong with the rest: not in an error, in none that
lies behind it, and in nothing that shows the configuration. And a password is taken as it is, whatever is in it.
"""

from __future__ import annotations

import ast
import builtins
import copy
import json
import os
import pprint
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.config import ENVIRONMENT_PREFIX, Config, parse
from cdc.config.fleet import load_daemon
from cdc.errors import ConfigurationError
from cdc.protocol.requests import scramble
from tests.fakes.profiles import MANY, SOME
from tests.fakes.secrets import told

ROOT: Final = Path(__file__).resolve().parent.parent
MARK = "hunter2"
"""What every secret has in it; no text of the program has."""
_SIGNS = "\t\n\r \x00\x7f%@:/?#[]\\\"'{}=,;$&+" + "\u00e9\u2100\uff0f\uff1a\ufe55\uff20\uff1f\uff03\u65e5\U0001f600"
ODD = st.text(alphabet=st.sampled_from(_SIGNS), max_size=4)
SECRETS = st.tuples(ODD, ODD).map(MARK.join)


def good() -> dict[str, Any]:
    return {
        "name": "shop",
        "source": {"uris": ["cdc@a:3301"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"},
    }


def put(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The values with another one in the place `section.key` or `section.table.key`, as TOML would have it."""
    values = copy.deepcopy(values)
    *sections, last = key.split("/")
    place = values
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return values


PLACES: list[tuple[str, Callable[[str], Any]]] = [
    ("source/uris", lambda secret: [f"u:{secret}@a:3301"]),
    ("source/uris", lambda secret: [f"u:{quote(secret)}@a:3301"]),
    ("source/uris", lambda secret: ["b:1", f"tcp://u:{secret}@a:3301", f"u:{secret}@a:3301"]),
    ("source/uris", lambda secret: [f"u:{secret}@a:port"]),
    ("source/uris", lambda secret: [f"u:{secret}@a:99999"]),
    ("source/uris", lambda secret: [f"u:{secret}@a"]),
    ("source/uris", lambda secret: [f"u:{secret}"]),
    ("source/uris", lambda secret: [f"u:{secret}@"]),
    ("source/uris", lambda secret: [f"u:{secret}@[::1:3301"]),
    ("source/uris", lambda secret: [f"u@{secret}:a:3301"]),
    ("source/uris", lambda secret: [f"u:%ff{secret}@a:3301"]),
    ("source/uris", lambda secret: [f"u@a:3301/{secret}"]),
    ("source/uris", lambda secret: [f"u@a:3301?password={secret}"]),
    ("source/uris", lambda secret: [[secret]]),
    ("source/uris", lambda secret: f"u:{secret}@a:3301"),
    ("source/uris", lambda secret: {"a": secret}),
    ("source/password", lambda secret: secret),
    ("source/password", lambda secret: [secret]),
    ("source/password_file", lambda secret: secret),
    ("source/password_file", lambda secret: [secret]),
    ("source/passwort", lambda secret: secret),
    ("source", lambda secret: secret),
    ("source", lambda secret: {"uris": ["a:1"], f"u:{secret}@a:1": 1}),
    ("kafka/properties/sasl.password", lambda secret: secret),
    ("kafka/properties/sasl.password", lambda secret: [secret]),
    ("kafka/properties", lambda secret: secret),
    ("kafka/properties", lambda secret: [secret]),
    ("kafka/properties/transactional.id", lambda secret: secret),
    ("kafka/bootstrap_servers", lambda secret: f"u:{secret}@k:9092"),
    ("kafka/sasl_password", lambda secret: secret),
    ("kafka/topic_prefix", lambda secret: [secret]),
    ("kafka/partitions", lambda secret: secret),
    ("format/registry/password", lambda secret: secret),
    ("format/registry/password", lambda secret: [secret]),
    ("format/registry/password_file", lambda secret: secret),
    ("format/registry/url", lambda secret: f"http://u:{secret}@r:8081"),
    ("format/registry/properties/basic.auth.user.info", lambda secret: f"u:{secret}"),
    ("format/registry/properties/bearer.auth.token", lambda secret: [secret]),
    ("format/registry/properties", lambda secret: secret),
    ("format/registry", lambda secret: secret),
    ("http/listen", lambda secret: f"u:{secret}@127.0.0.1:8085"),
    ("http/listen", lambda secret: f"127.0.0.1:{secret}"),
    ("log/level", lambda secret: secret),
    ("log", lambda secret: secret),
    ("name", lambda secret: f"u:{secret}"),
    ("name", lambda secret: {"a": secret}),
]
MISTAKES: list[tuple[str, Any]] = [
    ("name", "shop"),
    ("name", "two words"),
    ("source/mode", "joined"),
    ("source/instance_name", "x"),
    ("source/password", "another"),
    ("kafka/partitions", "many"),
    ("http/listen", "8085"),
    ("other", 1),
]


def shown(config: Config) -> Iterator[str]:
    """All that shows a configuration, in whole or in part."""
    for thing in (
        config,
        config.source,
        config.source.uris,
        config.source.password,
        config.kafka,
        config.format,
        *config.source.members(),
    ):
        yield from (str(thing), repr(thing), f"{thing!s:>100}", pprint.pformat(thing))
    yield repr(config.model_dump())
    yield config.model_dump_json()


def all_that_is_told(make: Callable[[], Config]) -> list[str]:
    """What the configuration shows, or the error."""
    try:
        return list(shown(make()))
    except ConfigurationError as error:
        return list(told(error))


def check(make: Callable[[], Config]) -> None:
    for text in all_that_is_told(make):
        assert MARK not in text


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@MANY
@given(place=st.sampled_from(PLACES), secret=SECRETS, mistake=st.sampled_from(MISTAKES))
@example(place=PLACES[0], secret=f"pa{MARK}]x", mistake=MISTAKES[0])
@example(place=PLACES[0], secret=f"\u2100{MARK}", mistake=MISTAKES[0])
def test_in_the_values(place: tuple[str, Callable[[str], Any]], secret: str, mistake: tuple[str, Any]) -> None:
    key, make = place
    values = put(put(good(), *mistake), key, make(secret))
    check(lambda: parse(values, "shop.toml"))


@SOME
@given(place=st.sampled_from(PLACES), secret=SECRETS, mistake=st.sampled_from(MISTAKES), is_json=st.booleans())
def test_in_the_environment(
    place: tuple[str, Callable[[str], Any]], secret: str, mistake: tuple[str, Any], is_json: bool
) -> None:
    key, make = place
    value = make(secret)
    text = value if isinstance(value, str) and not is_json else json.dumps(value)
    variable = ENVIRONMENT_PREFIX + key.replace("/", "__").replace(".", "_").upper()
    with environment(**{variable: text.replace("\x00", "")}):
        check(lambda: parse(put(good(), *mistake), "shop.toml"))


TWICE = 'password = "%s"\npassword = "%s"'
LINES = ['password = "%s', "password = %s", "%s", "[%s", 'password = "%s" x', TWICE, "p = '''%s", "'%s'"]


@SOME
@given(
    secret=SECRETS,
    line=st.sampled_from(LINES),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
)
def test_in_a_file(tmp_path_factory: pytest.TempPathFactory, secret: str, line: str, encoding: str) -> None:
    path = tmp_path_factory.mktemp("config") / "shop.toml"
    path.write_bytes(f'name = "shop"\n[source]\n{line.replace("%s", secret)}\n'.encode(encoding))
    check(lambda: load_daemon(path, None))


@pytest.mark.parametrize("content", [f"{MARK}\n".encode(), b"\xff\xfe" + MARK.encode(), b"", b"\n"])
def test_in_a_file_of_its_own(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)
    check(lambda: parse(put(good(), "source/password_file", str(path)), "shop.toml"))


# Passwords are taken as they are.


def password_of(values: dict[str, Any]) -> str:
    (member,) = parse(values, "shop.toml").source.members()
    assert (member.host, member.port, member.user) == ("a", 3301, "u")
    assert member.password is not None
    return member.password.get_secret_value()


@MANY
@given(password=SECRETS | st.text(min_size=1), is_quoted=st.booleans())
@example(password="a\tb", is_quoted=False)
@example(password="a@b:c/d", is_quoted=False)
@example(password="//hunter2", is_quoted=False)
def test_in_a_uri(password: str, is_quoted: bool) -> None:
    """As it is, but for percent signs, or every byte of it as %XX."""
    written = quote(password, safe="") if is_quoted else password.replace("%", "%25")
    for scheme in ("", "tcp://", "tarantool://", "//"):
        assert password_of(put(good(), "source/uris", [f"{scheme}u:{written}@a:3301"])) == password


@MANY
@given(password=SECRETS | st.text(min_size=1))
def test_by_itself(password: str) -> None:
    values = put(put(good(), "source/uris", ["u@a:3301"]), "source/password", password)
    assert password_of(values) == password


@SOME
@given(password=st.binary(min_size=1), end=st.sampled_from([b"", b"\n", b"\r\n"]))
@example(password=b" a ", end=b"\n")
def test_in_its_file(tmp_path_factory: pytest.TempPathFactory, password: bytes, end: bytes) -> None:
    """Any bytes, and one line end, which editors add."""
    if password[-1:] in (b"\n", b"\r"):
        password += b"."
    path = tmp_path_factory.mktemp("password") / "password"
    path.write_bytes(password + end)
    found = password_of(put(put(good(), "source/uris", ["u@a:3301"]), "source/password_file", str(path)))
    assert found.encode("utf-8", "surrogateescape") == password
    assert len(scramble(found, b"\x01" * 20)) == 20


def test_a_password_in_the_key_of_its_file() -> None:
    with pytest.raises(ConfigurationError, match=r"source\.password_file can't be read: No such file"):
        parse(put(good(), "source/password_file", MARK), "shop.toml").source.members()


def _quoted_in_sentences(source: str) -> list[str]:
    """The calls that quote received data within the sentence of one of our errors."""
    found = []
    for node in ast.walk(ast.parse(source)):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name.endswith("Error") and not hasattr(builtins, name):
            parts = [part for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Call)]
            found += [ast.unparse(part) for part in parts if ast.unparse(part.func).rpartition(".")[2] in ("excerpt", "hex")]
    return found


def test_received_data_is_only_in_the_details_of_errors() -> None:
    """Anyone who may see the status sees the sentences. The log alone has the details."""
    local = ROOT / "cdc" / "local"  # servers for tests, which show nothing to anyone
    for file in sorted((ROOT / "cdc").rglob("*.py")):
        if file.is_relative_to(local):
            continue
        assert not _quoted_in_sentences(file.read_text()), file
    assert _quoted_in_sentences('raise SchemaError(f"no key: {excerpt(row)}")') == ["excerpt(row)"]
    assert not _quoted_in_sentences('raise SchemaError("no key", detail=body.hex(" "))')
