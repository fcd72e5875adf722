"""Tokens and roles: which token may do what, files of tokens that change or are wrong, and a daemon's own one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cdc.config import parse
from cdc.daemon.http_settings import tokens_of
from cdc.errors import ConfigurationError
from cdc.ops.rights import ANYONE, NOBODY, OWN_TOKEN, ROLES, Rights, TokenSource, make_own_token, read_tokens, token_for

ANN, BOB = "ann-token-0123456789", "bob-token-0123456789"


def source(tmp_path: Path, **http: Any) -> TokenSource:
    values = {
        "name": "shop",
        "source": {"uris": ["cdc:s@a:3301"]},
        "kafka": {"bootstrap_servers": "a:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path / "state")},
        "http": http,
    }
    return tokens_of(parse(values, "the test"))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"# who may what\nann rows,operate {ANN}\n\nbob view {BOB}\n")
    return file


def test_roles_of_a_file(tmp_path: Path, tokens: Path) -> None:
    rights = Rights.of(source(tmp_path, tokens_file=str(tokens)))
    assert rights.visitor(None) == ANYONE
    assert rights.visitor(f"Bearer {ANN}") == ("ann", frozenset(ROLES))
    assert rights.visitor(f"bearer {BOB}") == ("bob", frozenset({"view"}))
    assert not (tmp_path / "state").exists(), "with tokens in the configuration, none is made"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", f"Basic {ANN}", f"Bearer {ANN}x", ANN, "Bearer \udcff"])
def test_a_token_that_is_not_known_has_no_rights_at_all(tmp_path: Path, tokens: Path, header: str) -> None:
    """Not even those of anyone: who shows one means to have more."""
    assert Rights.of(source(tmp_path, tokens_file=str(tokens))).visitor(header) == NOBODY


def test_without_a_token_nothing_where_the_view_needs_one(tmp_path: Path, tokens: Path) -> None:
    rights = Rights.of(source(tmp_path, tokens_file=str(tokens), view="token"))
    assert rights.visitor(None) == NOBODY
    assert "view" in rights.visitor(f"Bearer {BOB}").roles


def test_a_changed_file_counts_at_once(tmp_path: Path, tokens: Path) -> None:
    rights = Rights.of(source(tmp_path, tokens_file=str(tokens)))
    tokens.write_text(f"ann view {ANN}\n")
    assert rights.visitor(f"Bearer {ANN}").roles == {"view"}
    assert rights.visitor(f"Bearer {BOB}") == NOBODY
    tokens.write_text("nonsense\n")
    assert rights.visitor(f"Bearer {ANN}") == NOBODY
    tokens.unlink()
    assert rights.visitor(f"Bearer {ANN}") == NOBODY
    tokens.write_text(f"ann operate {ANN}\n")
    assert rights.visitor(f"Bearer {ANN}").roles == {"view", "operate"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"ann everything {ANN}", "entry 1 has the role 'everything'; there are view, rows, operate"),
        ("ann view short", "the token of entry 1 is shorter than 16 characters"),
        (f"ann {ANN}", "entry 1 has 2 words"),
        (f"ann view {ANN}\nbob view {ANN}", "the token of entry 2 is that of an entry before it"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, problem: str) -> None:
    """They are told without a word of the file that could be a token."""
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        read_tokens(file)
    assert problem in str(raised.value)
    assert ANN not in str(raised.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.tokens_file can't be read: No such file"):
        Rights.of(source(tmp_path, tokens_file=str(tmp_path / "none")))


def test_the_daemons_own_token(tmp_path: Path) -> None:
    """Its owner alone may read it; it stays from start to start; commands use it."""
    found = source(tmp_path)
    file = tmp_path / "state" / OWN_TOKEN
    rights = Rights.of(found)
    assert token_for(found) is None
    assert not file.parent.exists(), "a state.path that is wrong would look right at the next start"
    make_own_token(found)
    token = token_for(found)
    assert token is not None
    assert rights.visitor(f"Bearer {token}").roles == set(ROLES)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [OWN_TOKEN]
    make_own_token(found)
    assert token_for(found) == token


@pytest.mark.parametrize("rest", ["", "half of a to"])
def test_an_own_token_that_a_crash_has_cut(tmp_path: Path, rest: str) -> None:
    """Nobody could give orders any more."""
    found = source(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / OWN_TOKEN).write_text(rest)
    rights = Rights.of(found)
    make_own_token(found)
    assert rights.visitor(f"Bearer {token_for(found)}").roles == set(ROLES)
    assert os.listdir(tmp_path / "state") == [OWN_TOKEN]


def test_an_own_token_where_files_have_no_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have no hard links."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("cdc.ops.rights.os.link", refuse)
    found = source(tmp_path)
    make_own_token(found)
    assert Rights.of(found).visitor(f"Bearer {token_for(found)}").roles == set(ROLES)
    assert os.listdir(tmp_path / "state") == [OWN_TOKEN]


def test_a_state_path_that_can_not_be_used_leaves_the_view(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    make_own_token(source(tmp_path))
    rights = Rights.of(source(tmp_path))
    assert rights.visitor(None) == ANYONE
    assert token_for(source(tmp_path)) is None


def test_the_token_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    monkeypatch.setenv("TARANTOOL_CDC__HTTP__TOKEN", "from-the-environment")
    found = source(tmp_path, tokens_file=str(tokens))
    rights = Rights.of(found)
    assert rights.visitor("Bearer from-the-environment").roles == set(ROLES)
    assert rights.visitor(f"Bearer {BOB}").name == "bob"
    assert token_for(found) == "from-the-environment"


def test_commands_use_the_token_that_may_do_most(tmp_path: Path, tokens: Path) -> None:
    tokens.write_text(f"bob view {BOB}\nann operate {ANN}\n")
    assert token_for(source(tmp_path, tokens_file=str(tokens))) == ANN


def test_short_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http.*16 characters or more"):
        source(tmp_path, token="short")
