"""The configuration: every mistake is named with its key, the environment wins, and no secret is ever shown."""

from __future__ import annotations

import copy
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from cdc.config import ENVIRONMENT_PREFIX, Config, fleet, parse
from cdc.config.timeouts import Timeouts
from cdc.errors import ConfigurationError

SECRET = "hunter2-and-more"
GOOD: dict[str, Any] = {
    "name": "shop",
    "source": {"uris": [f"cdc:{SECRET}@127.0.0.1:3301"]},
    "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"},
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENVIRONMENT_PREFIX.rstrip("_")):
            monkeypatch.delenv(name)


def changed(**sections: Any) -> dict[str, Any]:
    """The good configuration with keys added to its sections, or sections replaced."""
    values = copy.deepcopy(GOOD)
    for name, value in sections.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            values[name] |= value
        else:
            values[name] = value
    return values


def mistakes(**sections: Any) -> str:
    with pytest.raises(ConfigurationError, match="has mistakes") as caught:
        parse(changed(**sections), "shop.toml")
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    return str(caught.value)


def test_the_least_that_is_needed() -> None:
    config = parse(copy.deepcopy(GOOD), "shop.toml")
    (member,) = config.source.members()
    assert (member.host, member.port, member.user, member.address) == ("127.0.0.1", 3301, "cdc", "127.0.0.1:3301")
    assert member.password is not None
    assert member.password.get_secret_value() == SECRET
    assert config.kafka.delivery == "exactly_once"
    assert config.snapshot.mode == "initial"
    assert config.http.address == ("127.0.0.1", 8085)


def test_the_time_limits_for_members_follow_from_one_key() -> None:
    limits = parse(copy.deepcopy(GOOD), "shop.toml").source.timeouts
    assert limits == Timeouts(vote=1, probe_after=1.25, silence=10, survey=10, wait=30)
    assert parse(changed(source={"replication_timeout_ms": 300}), "shop.toml").source.timeouts == Timeouts(
        vote=0.3, probe_after=0.375, silence=3, survey=3, wait=9
    )
    given = {"replication_timeout_ms": 300, "survey_interval_ms": 0, "divergence_wait_ms": 500}
    limits = parse(changed(source=given), "shop.toml").source.timeouts
    assert (limits.survey, limits.wait, limits.silence) == (0, 0.5, 3)


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("name", {"name": "two words"}, "may have letters"),
    ("name", {"name": ""}, "may have letters"),
    ("source.uris", {"source": {"uris": []}}, "must have 1 at least"),
    ("source.uris, the first of the list", {"source": {"uris": ["127.0.0.1"]}}, "without host and port"),
    ("source.uris, the second of the list", {"source": {"uris": ["h:1", ":3301"]}}, "without host and port"),
    ("source.uris, the first of the list", {"source": {"uris": [f"u:{SECRET}@host:port"]}}, "port is not a number"),
    ("source.uris, the first of the list", {"source": {"uris": [f"u:{SECRET}@host:99999"]}}, "port is not a number"),
    ("source", {"source": {"password": SECRET, "password_file": "x"}}, "exclude each other"),
    ("source.mode", {"source": {"mode": "joined"}}, 'must be "anonymous" or "registered"'),
    ("source.instance_name", {"source": {"mode": "registered", "instance_name": "Reader"}}, "lowercase letter"),
    ("source.instance_name", {"source": {"mode": "registered", "instance_name": "x" * 64}}, "63 at most"),
    ("source", {"source": {"instance_name": "reader"}}, 'instance_name needs mode = "registered"'),
    ("source.on_gap", {"source": {"on_gap": "ignore"}}, "resnapshot"),
    ("source.prefer", {"source": {"prefer": "master"}}, 'must be "replica", "leader" or "order"'),
    ("source.divergence_wait_ms", {"source": {"divergence_wait_ms": -1}}, "must be 0 at least"),
    ("source.survey_interval_ms", {"source": {"survey_interval_ms": -1}}, "must be 0 at least"),
    ("source.replication_timeout_ms", {"source": {"replication_timeout_ms": 1}}, "must be 50 at least"),
    ("source.vote_timeout_ms", {"source": {"vote_timeout_ms": 1_000}}, "source.replication_timeout_ms, as the same time"),
    ("source.probe_after_ms", {"source": {"probe_after_ms": 1_250}}, "source.replication_timeout_ms, as 1.25 times that"),
    ("source.silence_timeout_ms", {"source": {"silence_timeout_ms": 10_000}}, "source.replication_timeout_ms, as 10 times that"),
    ("source", {"source": {"uris": ["a:1@h:3301", "h:3302", "b:2@h:3301"]}}, "names a member twice"),
    ("source.exclude_origins, the first of the list", {"source": {"exclude_origins": [0]}}, "not the id of a member"),
    ("source.exclude_origins, the second of the list", {"source": {"exclude_origins": [31, 32]}}, "not the id of a member"),
    ("configuration", {"source": {"exclude_origins": [2]}}, 'needs state.images = "none"'),
    ("source.ack_interval_ms", {"source": {"ack_interval_ms": 1}}, "must be 10 at least"),
    ("source.frame_bytes_max", {"source": {"frame_bytes_max": "many"}}, "must be a whole number without quotes: 268435456"),
    ("source.pasword", {"source": {"pasword": SECRET}}, "no such key"),
    ("sorce", {"sorce": {"uris": [SECRET]}}, "no such key"),
    ("snapshot.mode", {"snapshot": {"mode": "sometimes"}}, "initial"),
    ("spaces.include, the first of the list", {"spaces": {"include": ["("]}}, "'(' is not a regular expression"),
    ("spaces.include, the first of the list", {"spaces": {"include": ["*"]}}, "position 0; '.*' fits all names"),
    ("spaces.exclude, the second of the list", {"spaces": {"exclude": ["ok", "[z-a]"]}}, "'[z-a]' is not a regular expression"),
    ("kafka.bootstrap_servers", {"kafka": {"bootstrap_servers": None}}, "must be a string, in quotes"),
    ("kafka.topic_prefix", {"kafka": {"topic_prefix": "a/b"}}, "may have letters"),
    ("kafka.delivery", {"kafka": {"delivery": "twice"}}, "exactly_once"),
    ("kafka.partitions", {"kafka": {"partitions": 0}}, "must be 1 at least"),
    ("kafka", {"kafka": {"replication_factor": 3, "min_insync_replicas": 4}}, "nothing could ever be written"),
    ("kafka.transaction_topic", {"kafka": {"transaction_topic": "some"}}, "multi"),
    ("kafka", {"kafka": {"properties": {"transactional.id": "x", "acks": 1}}}, "may not set acks, transactional.id"),
    ("format.on_error", {"format": {"on_error": "skip"}}, "dlq"),
    (
        "format.value",
        {"format": {"value": "msgpack"}},
        'must be "json", "json_schema", "avro", "protobuf" or "json_schema_registry"',
    ),
    ("format.key", {"format": {"key": "text"}}, 'must be "json", "json_schema", "avro", "protobuf" or'),
    ("format.envelope", {"format": {"envelope": "maxwell"}}, 'must be "debezium" or "flat"'),
    ("format", {"format": {"envelope": "flat", "source": "lean"}}, 'source has no effect with envelope = "flat"'),
    ("configuration", {"format": {"envelope": "flat"}, "state": {"images": "none"}}, 'needs state.images = "full"'),
    ("format.source", {"format": {"source": "none"}}, 'must be "full" or "lean"'),
    ("format", {"format": {"value": "avro"}}, 'value = "avro" needs the registry\'s address: set url in [format.registry]'),
    ("format", {"format": {"key": "avro", "registry": {}}}, 'key = "avro" needs the registry\'s address'),
    ("format", {"format": {"unsigned": "string"}}, 'unsigned has no effect on "json"'),
    ("format.registry", {"format": {"registry": {"url": "registry:8081"}}}, "must be an address as in http://127.0.0.1:8081"),
    ("format.registry", {"format": {"registry": {"url": f"http://u:{SECRET}@r:8081"}}}, "without a user"),
    ("format.registry", {"format": {"registry": {"password": SECRET}}}, "password and password_file need user"),
    (
        "format.registry",
        {"format": {"registry": {"user": "u", "password": SECRET, "password_file": "x"}}},
        "password and password_file exclude each other",
    ),
    (
        "format.registry",
        {"format": {"registry": {"user": "u", "properties": {"basic.auth.user.info": SECRET}}}},
        "may not set basic.auth.user.info",
    ),
    ("format.registry.subjects", {"format": {"registry": {"subjects": "topic"}}}, "did you mean format.registry.subject?"),
    ("http", {"http": {"listen": "8085"}}, "must be host:port"),
    ("http", {"http": {"listen": "127.0.0.1:http"}}, "must be host:port"),
    ("http", {"http": {"listen": "127.0.0.1:70000"}}, "must be host:port"),
    (
        "http.allowed_hosts, the second of the list",
        {"http": {"allowed_hosts": ["cdc.example", "cdc.example:8085"]}},
        "leave out the port and the scheme",
    ),
    ("log.level", {"log": {"level": "loud"}}, "debug"),
    ("spaces.include", {"spaces": {"include": "users"}}, 'must be a list of strings, ["users"], and is a string'),
    (
        "spaces.include, the third of the list",
        {"spaces": {"include": ["a", "b", 3]}},
        "must be a string, in quotes, and is a whole",
    ),
    ("spaces.include, the 11th of the list", {"spaces": {"include": ["a"] * 10 + ["("]}}, "'(' is not a regular expression"),
    ("source.uris", {"source": {"uris": SECRET}}, 'must be a list of strings, ["user:password@host:3301"], and is a string'),
    ("source.uris, the first of the list", {"source": {"uris": [3301]}}, "must be a string, in quotes, and is a whole number"),
    ("source.exclude_origins", {"source": {"exclude_origins": 3}}, "must be a list of whole numbers, [3], and is a whole number"),
    ("kafka.partitions", {"kafka": {"partitions": "four"}}, "must be a whole number without quotes: 4"),
    ("kafka.partitions", {"kafka": {"partitions": 4.5}}, "must be a whole number without quotes: 4"),
    ("kafka.partitions", {"kafka": {"partitions": 10_001}}, "must be 10000 at most"),
    ("kafka.tombstones", {"kafka": {"tombstones": "maybe"}}, "must be true or false without quotes"),
    ("kafka.properties", {"kafka": {"properties": [SECRET]}}, "must be a table, [kafka.properties], and is a list"),
    ("kafka.properties.linger.ms", {"kafka": {"properties": {"linger.ms": [1]}}}, "must be a string, a number, true or false"),
    ("kafka", {"kafka": "localhost:9092"}, "must be a table, [kafka], and is a string"),
    ("state.path", {"state": {"path": 5}}, "must be a string, in quotes, and is a whole number"),
]


@pytest.mark.parametrize(("key", "values", "says"), MISTAKES, ids=[f"{key}: {says}" for key, _, says in MISTAKES])
def test_each_mistake_is_told_with_its_key(key: str, values: dict[str, Any], says: str) -> None:
    (line,) = [line for line in mistakes(**values).splitlines() if line.startswith("  ")]
    assert line.startswith(f"  {key}: ")
    assert says in line


def test_all_mistakes_are_told_at_once() -> None:
    text = mistakes(
        name="two words", kafka={"partitions": 0, "topic_prefix": "/"}, source={"on_gap": "x"}, log={"level": "x"}, x=1
    )
    keys = [line.split(":")[0].strip() for line in text.splitlines() if line.startswith("  ")]
    assert sorted(keys) == ["kafka.partitions", "kafka.topic_prefix", "log.level", "name", "source.on_gap", "x"]


@pytest.mark.parametrize("missing", ["name", "source", "kafka"])
def test_what_is_missing_is_told(missing: str) -> None:
    values = copy.deepcopy(GOOD)
    del values[missing]
    with pytest.raises(ConfigurationError, match=f"  {missing}: is missing"):
        parse(values, "shop.toml")


def test_registered_mode() -> None:
    source = parse(changed(source={"mode": "registered", "instance_name": "cdc-reader_1"}), "shop.toml").source
    assert (source.mode, source.instance_name) == ("registered", "cdc-reader_1")
    assert parse(changed(), "shop.toml").source.mode == "anonymous"


# Secrets.


def test_secrets_are_not_shown() -> None:
    config = parse(changed(source={"password": SECRET}), "shop.toml")
    (member,) = config.source.members()
    for thing in (config, config.source, config.source.uris, config.source.password, member, member.password, member.address):
        assert SECRET not in repr(thing)
        assert SECRET not in str(thing)
    assert SECRET not in str(config.model_dump())
    assert SECRET not in config.model_dump_json()


def test_password_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    config = parse(changed(source={"uris": ["cdc@h:3301", "other:inline@h:3302"], "password_file": str(file)}), "shop.toml")
    first, second = config.source.members()
    assert first.password is not None
    assert first.password.get_secret_value() == SECRET
    assert second.password is not None
    assert second.password.get_secret_value() == "inline"


def test_password_file_that_is_not_there(tmp_path: Path) -> None:
    config = parse(changed(source={"uris": ["cdc@h:3301"], "password_file": str(tmp_path / "none")}), "shop.toml")
    with pytest.raises(ConfigurationError, match=r"source\.password_file can't be read.*may read"):
        config.source.members()


@pytest.mark.parametrize(
    ("uri", "host", "port", "user", "password"),
    [
        ("h:1", "h", 1, "guest", None),
        ("guest@h:1", "h", 1, "guest", None),
        ("u@h:1", "h", 1, "u", ""),
        ("u:@h:1", "h", 1, "u", ""),
        ("u:p@h:1", "h", 1, "u", "p"),
        ("tcp://u:p@h:1", "h", 1, "u", "p"),
        ("u%40x:p%3A%2F@h:1", "h", 1, "u@x", "p:/"),
        ("u:p@[::1]:3301", "::1", 3301, "u", "p"),
    ],
)
def test_uris(uri: str, host: str, port: int, user: str, password: str | None) -> None:
    (member,) = parse(changed(source={"uris": [uri]}), "shop.toml").source.members()
    assert (member.host, member.port, member.user) == (host, port, user)
    assert (member.password.get_secret_value() if member.password is not None else None) == password


def test_empty_passwords_of_uris_and_files(tmp_path: Path) -> None:
    """A user is a user, and not guest. An empty file is rather a secret that isn't there."""
    file = tmp_path / "password"
    config = parse(changed(source={"uris": ["cdc:@h:3301", "cdc@h:3302"], "password_file": str(file)}), "shop.toml")

    def passwords() -> list[str]:
        return [member.password.get_secret_value() for member in config.source.members() if member.password is not None]

    file.write_text(SECRET)
    assert passwords() == ["", SECRET]
    for line_end in (b"\n", b"\r\n"):
        file.write_bytes(line_end)
        assert passwords() == ["", ""]
    file.write_text("")
    with pytest.raises(ConfigurationError, match=r"source\.password_file is empty"):
        config.source.members()


def test_user_and_password_apart() -> None:
    source = {"uris": ["h:1", "own:word@h:2"], "user": "cdc", "password": SECRET}
    first, second = parse(changed(source=source), "shop.toml").source.members()
    assert (first.user, second.user) == ("cdc", "own")


def test_addresses_need_no_secrets(tmp_path: Path) -> None:
    values = changed(source={"uris": ["cdc@h:3301", "[::1]:3302"], "password_file": str(tmp_path / "none")})
    assert parse(values, "shop.toml").source.addresses() == [("h", 3301), ("::1", 3302)]


def test_origins_can_be_left_out_without_images() -> None:
    config = parse(changed(source={"exclude_origins": [2, 31]}, state={"images": "none"}), "shop.toml")
    assert config.source.exclude_origins == [2, 31]


@pytest.mark.parametrize("file", sorted(Path("config").glob("*.toml")), ids=lambda file: file.name)
def test_the_examples_can_be_used(file: Path) -> None:
    found = fleet.load(file)
    assert all(config.source.addresses() for config in (found.shards.values() if isinstance(found, fleet.Fleet) else [found]))


# The environment.


def test_the_environment_wins_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARANTOOL_CDC__KAFKA__TOPIC_PREFIX", "other")
    monkeypatch.setenv("TARANTOOL_CDC__KAFKA__PARTITIONS", "7")
    monkeypatch.setenv("TARANTOOL_CDC__NAME", "renamed")
    monkeypatch.setenv("TARANTOOL_CDC__SPACES__INCLUDE", '["a", "b"]')
    monkeypatch.setenv("TARANTOOL_CDC__SOURCE__PASSWORD", SECRET)
    config = parse(changed(source={"uris": ["cdc@h:3301"]}), "shop.toml")
    assert (config.name, config.kafka.topic_prefix, config.kafka.partitions) == ("renamed", "other", 7)
    assert config.kafka.bootstrap_servers == "127.0.0.1:9092", "the file's other keys stay"
    assert config.spaces.include == ["a", "b"]
    (member,) = config.source.members()
    assert member.password is not None
    assert member.password.get_secret_value() == SECRET


def test_the_registry_has_a_section_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("geheim\n")
    file = tmp_path / "shop.toml"
    file.write_text(
        'name = "shop"\n[source]\nuris = ["h:3301"]\n[kafka]\nbootstrap_servers = "k:9092"\ntopic_prefix = "shop"\n'
        '[format]\nkey = "json_schema"\nvalue = "avro"\n[format.registry]\nurl = "http://r:8081"\nuser = "cdc"\n'
        'password_file = "password"\nproperties = { "ssl.ca.location" = "ca.pem" }\n'
    )
    monkeypatch.setenv("TARANTOOL_CDC__FORMAT__REGISTRY__SUBJECT", "record")
    config = fleet.load_daemon(file, None)
    assert config.format.registry.client_settings() == {
        "url": "http://r:8081",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "basic.auth.user.info": "cdc:geheim",
    }
    assert config.format.registry.subject == "record"
    assert config.format.needs_registry


def test_a_section_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values = copy.deepcopy(GOOD)
    del values["kafka"]
    monkeypatch.setenv("TARANTOOL_CDC__KAFKA__TOPIC_PREFIX", "shop")
    monkeypatch.setenv("TARANTOOL_CDC__KAFKA__BOOTSTRAP_SERVERS", "k:9092")
    assert parse(values, "shop.toml").kafka.bootstrap_servers == "k:9092"


def test_mistakes_of_the_environment_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARANTOOL_CDC__KAFKA__PARTITIONS", "none")
    assert "kafka.partitions: must be a whole number: 4 (from the environment" in mistakes()
    assert "(from the environment, TARANTOOL_CDC__KAFKA__PARTITIONS)" in mistakes()


def test_a_secret_of_the_environment_is_not_told_in_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARANTOOL_CDC__SOURCE__URIS", f'["u:{SECRET}@host"]')
    assert "without host and port" in mistakes()


@pytest.mark.parametrize("variable", ["SOURCE__URIS", "SPACES__INCLUDE", "KAFKA", "KAFKA__PROPERTIES"])
def test_lists_and_tables_of_the_environment_that_are_not_json(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}{variable}", f"cdc:{SECRET}@host:3301")
    with pytest.raises(ConfigurationError, match="are JSON there") as caught:
        parse(copy.deepcopy(GOOD), "shop.toml")
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown


# The file.


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "shop.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        name = "shop"
        [source]
        uris = ["cdc:{SECRET}@127.0.0.1:3301"]
        [kafka]
        bootstrap_servers = "127.0.0.1:9092"
        topic_prefix = "shop"
        [kafka.properties]
        "linger.ms" = 5
        """,
    )
    config = fleet.load_daemon(path, None)
    assert isinstance(config, Config)
    assert config.kafka.properties == {"linger.ms": 5}


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't be read: No such file.*--config"):
        fleet.load_daemon(tmp_path / "none.toml", None)


@pytest.mark.parametrize("text", ["name = ", b"\xff\xfe", "[a]\n[a]", f'password = "{SECRET}'])
def test_file_that_is_not_toml(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="isn't TOML") as caught:
        fleet.load_daemon(write(tmp_path, text), None)
    assert SECRET not in str(caught.value)


def test_file_with_mistakes_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1")
    with pytest.raises(ConfigurationError) as caught:
        fleet.load_daemon(path, None)
    assert f"the configuration {path} has mistakes:" in str(caught.value)
    assert "  x: no such key" in str(caught.value)
    assert "  source: is missing" in str(caught.value)


@pytest.mark.parametrize(("listen", "address"), [("", None), ("0.0.0.0:0", ("0.0.0.0", 0)), ("::1:8085", ("::1", 8085))])
def test_addresses_to_listen_at(listen: str, address: tuple[str, int] | None) -> None:
    assert parse(changed(http={"listen": listen}), "shop.toml").http.address == address


# Paths.


def file_with(directory: Path, *lines: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "shop.toml"
    file.write_text(
        'name = "shop"\n[kafka]\nbootstrap_servers = "k:9092"\ntopic_prefix = "shop"\n'
        + "\n".join(lines)
        + '\n[source]\nuris = ["cdc@h:3301"]\npassword_file = "secrets/password"\n'
    )
    return file


def test_paths_begin_at_the_configuration_and_not_where_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "etc"
    properties = 'properties = {"ssl.ca.location" = "ca.pem", "ssl.key.location" = "/keys/key.pem", "client.rack" = "a"}'
    file = file_with(home, properties)
    (home / "secrets").mkdir()
    (home / "secrets" / "password").write_text(SECRET)
    found = []
    for start, name in ((tmp_path, "etc/shop.toml"), (home, "shop.toml"), (home / "secrets", "../shop.toml"), (Path("/"), file)):
        monkeypatch.chdir(start)
        found.append(fleet.load_daemon(Path(name), None))
    for config in found:
        assert config.state.path.resolve() == home / "state"
        assert config.source.members()[0].password is not None
        assert config.kafka.properties["ssl.key.location"] == "/keys/key.pem"
        assert config.kafka.properties["client.rack"] == "a"
        assert Path(str(config.kafka.properties["ssl.ca.location"])).resolve() == home / "ca.pem"


def test_paths_of_the_environment_begin_at_the_configuration_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_with(tmp_path)
    for given, path in (("elsewhere", tmp_path / "elsewhere"), ("/srv/cdc", Path("/srv/cdc"))):
        monkeypatch.setenv("TARANTOOL_CDC__STATE__PATH", given)
        assert fleet.load_daemon(file, None).state.path == path


def test_librdkafkas_word_for_the_systems_certificates_is_no_path(tmp_path: Path) -> None:
    config = fleet.load_daemon(file_with(tmp_path, 'properties = {"ssl.ca.location" = "probe"}'), None)
    assert config.kafka.properties == {"ssl.ca.location": "probe"}


@pytest.mark.parametrize(
    ("values", "suggestion"),
    [
        ({"source": {"pasword": SECRET}}, "source.password"),
        ({"kafka": {"partitons": 3}}, "kafka.partitions"),
        ({"kafak": {}}, "kafka"),
        ({"spaces": {"includes": ["a"]}}, "spaces.include"),
        ({"kafka": {"include": ["a"]}}, "spaces.include"),
        ({"listen": "127.0.0.1:1"}, "http.listen or tap.listen"),
        ({"state": {"format": "x"}}, "format or log.format"),
    ],
)
def test_the_key_that_was_meant_is_told(values: dict[str, Any], suggestion: str) -> None:
    (line,) = [line for line in mistakes(**values).splitlines() if "no such key" in line]
    assert line.endswith(f"; did you mean {suggestion}?")


@pytest.mark.parametrize(
    ("template", "mistake"),
    [
        ("{space}:{key", "has a brace that isn't one of a pair"),
        ("{space}:{}", "has a pair of braces without a field's name in it"),
        ("{space}", "names no field, so all rows of a space would have the same key"),
    ],
)
def test_a_template_of_keys_that_makes_no_key_is_a_mistake(template: str, mistake: str) -> None:
    assert f"tap.key: '{template}' {mistake}" in mistakes(tap={"key": template})


@pytest.mark.parametrize("users", [{"bob": ""}, {"bob": "x\0"}, {"b\0b": "x"}])
def test_a_user_of_tap_who_cannot_log_in_is_a_mistake(users: dict[str, str]) -> None:
    assert "can't log in" in mistakes(tap={"users": users})


def test_nothing_is_suggested_for_what_looks_like_nothing() -> None:
    assert "did you mean" not in mistakes(kafka={"zookeeper": 1})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TARANTOOL_CDC_KAFKA_TOPIC_PREFIX", "TARANTOOL_CDC__KAFKA__TOPIC_PREFIX"),
        ("TARANTOOL_CDC__KAFKA_TOPIC_PREFIX", "TARANTOOL_CDC__KAFKA__TOPIC_PREFIX"),
        ("TARANTOOL_CDC_KAFKA__TOPIC_PREFIX", "TARANTOOL_CDC__KAFKA__TOPIC_PREFIX"),
        ("tarantool_cdc_name", "TARANTOOL_CDC__NAME"),
        ("TARANTOOL_CDC__KAFAK__TOPIC_PREFIX", "TARANTOOL_CDC__KAFKA__TOPIC_PREFIX"),
    ],
)
def test_a_variable_that_nobody_would_read(monkeypatch: pytest.MonkeyPatch, variable: str, meant: str) -> None:
    """It would be passed over, and the daemon would work with the file's value."""
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(ConfigurationError) as caught:
        parse(copy.deepcopy(GOOD), "shop.toml")
    assert str(caught.value) == f"no key of the configuration is called {variable} in the environment. Did you mean {meant}?"


@pytest.mark.parametrize("variable", ["TARANTOOL_CDC_PORT", "TARANTOOL_CDC_SERVICE_HOST", "TARANTOOL_CDC_CACHE"])
def test_a_variable_of_somebody_else(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Kubernetes gives such to every pod beside a service that is called tarantool-cdc."""
    monkeypatch.setenv(variable, "tcp://10.0.0.1:8085")
    parse(copy.deepcopy(GOOD), "shop.toml")


@pytest.mark.parametrize(
    "text",
    [
        'kafka = { topic_prefix = "shop" }\n[kafka]\npartitions = 1\n',
        'kafka = {\n  topic_prefix = "shop"\n}\n',
        '[kafka]\ntopic_prefix = "shop"\n[kafka]\npartitions = 1\n',
    ],
)
def test_a_table_in_two_places_or_on_several_lines(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        fleet.load_daemon(file, None)
    assert str(caught.value).startswith(f"the configuration {file} isn't TOML: ")
    hint = "Write each table once: as [kafka] with its keys in the lines below, or as kafka = { … } within one line."
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"rules": [{"spaces": "users"}]}, "columns.rules, the first of the list: the rule for spaces = 'users' has no effect"),
        ({"rules": [{"exclude": ["a"]}]}, "columns.rules.spaces, the first of the list: is missing"),
        ({"rules": [{"spaces": "(", "exclude": ["a"]}]}, "'(' is not a regular expression"),
        ({"rules": [{"spaces": "u", "exclude": ["*"]}]}, "'.*' fits all names"),
        ({"rules": [{"spaces": "u", "mask": {"(": "x"}}]}, "'(' is not a regular expression"),
        ({"rules": [{"spaces": "u", "truncate": {"a": -1}}]}, "'a' = -1 must be 0 at least"),
        ({"rules": [{"spaces": "u", "hash": ["a"]}]}, "hash in a rule needs salt_file or salt"),
        ({"salt": "secret", "rules": [{"spaces": "u", "hash": ["a"]}]}, "salt must have 16 characters at least"),
        ({"salt": "0123456789abcdef", "salt_file": "salt"}, "salt and salt_file exclude each other"),
    ],
)
def test_rules_for_columns_that_cannot_be_meant(columns: dict[str, Any], says: str) -> None:
    assert says in mistakes(columns=columns)


@pytest.mark.parametrize(
    ("routing", "says"),
    [
        ({"topic": "a b"}, "'a b' must be a topic's name behind the prefix"),
        ({"topic": ""}, "must be a topic's name behind the prefix"),
        ({"topic": "{1}"}, "{1} needs the pattern of a rule"),
        ({"rules": [{"spaces": "a"}]}, "the rule for spaces = 'a' has no effect: give topic, where or partition_by"),
        ({"rules": [{"spaces": "(a)", "topic": "{2}"}]}, "{2} must be {space}, or the number of one of the 1 groups of '(a)'"),
        ({"rules": [{"spaces": "(a)", "topic": "{table}"}]}, "{table} must be {space}, or the number"),
        ({"rules": [{"spaces": "(", "topic": "a"}]}, "'(' is not a regular expression"),
    ],
)
def test_rules_for_topics_that_cannot_be_meant(routing: dict[str, Any], says: str) -> None:
    assert says in mistakes(routing=routing)


@pytest.mark.parametrize("routing", [{"topic": "all"}, {"rules": [{"spaces": "a", "topic": "b"}]}])
def test_topics_of_several_spaces_need_schemas_and_truncations_that_say_whose_they_are(routing: dict[str, Any]) -> None:
    registered = {"key": "avro", "registry": {"url": "http://x:1"}}
    assert 'set it to "topic_record" or "record"' in mistakes(routing=routing, format=registered)
    assert 'format.envelope = "flat"' in mistakes(routing=routing, format={"envelope": "flat"})
    for subject in ("record", "topic_record"):
        parse(changed(routing=routing, format={**registered, "registry": {"url": "http://x:1", "subject": subject}}), "shop.toml")
    parse(changed(routing={"topic": "v2.{space}"}, format=registered), "shop.toml")


def test_settings_of_topics_that_nothing_could_be_written_to() -> None:
    kafka = GOOD["kafka"] | {"min_insync_replicas": 2, "replication_factor": 3}
    kafka["topics"] = [{"pattern": "a", "replication_factor": 1}]
    assert "the entry for pattern = 'a': replication_factor = 1 is less than min_insync_replicas = 2" in mistakes(kafka=kafka)


def test_the_salt_is_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = 'rules = [{ spaces = "users", hash = ["email"] }]'
    path = file_with(tmp_path, "[columns]", 'salt_file = "salt"', rules)
    columns = fleet.load_daemon(path, None).columns
    with pytest.raises(ConfigurationError, match=r"columns\.salt_file can't be read"):
        columns.secret()
    (tmp_path / "salt").write_text("short\n")
    with pytest.raises(ConfigurationError, match=r"columns\.salt_file must have 16 characters at least.*openssl"):
        columns.secret()
    (tmp_path / "salt").write_text(f"{SECRET}-and-some-more\n")
    assert columns.secret() == f"{SECRET}-and-some-more".encode()
    monkeypatch.setenv("TARANTOOL_CDC__COLUMNS__SALT", f"{SECRET}-and-some-more")
    config = fleet.load_daemon(file_with(tmp_path, "[columns]", rules), None)
    assert config.columns.secret() == f"{SECRET}-and-some-more".encode()
    assert SECRET not in f"{config!r} {config} {config.model_dump()}"
