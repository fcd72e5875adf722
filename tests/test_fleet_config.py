"""A fleet's file: what each shard's daemon gets of it, and what is refused, with the key, before anything connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config import Config
from cdc.config.fleet import Fleet, load, load_daemon
from cdc.daemon.start import options_of
from cdc.errors import ConfigurationError
from cdc.events.topics import SCHEMA
from cdc.kafka.names import names_of, whose
from cdc.schema.forms import Routing
from cdc.stream.commits.ownership import transactional_id

SECRET = "hunter2-and-more"
MORE = """
[kafka]
bootstrap_servers = "127.0.0.1:9092"
topic_prefix = "shop"
"""
SHARDS = f"""
[fleet.shards.s1]
uris = ["cdc:{SECRET}@127.0.0.1:3301", "cdc:{SECRET}@127.0.0.1:3302"]
[fleet.shards.s2]
uris = ["cdc:{SECRET}@127.0.0.1:3311"]
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "fleet.toml"
    file.write_text(text)
    return file


def fleet(folder: Path, topics: str = 'topics = "shared"', more: str = MORE, shards: str = SHARDS) -> Fleet:
    found = load(written(folder, f'name = "shop"\n[fleet]\n{topics}\n{shards}\n{more}'))
    assert isinstance(found, Fleet)
    return found


def refusal(folder: Path, *parts: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        fleet(folder, *parts)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("topics", "others"), [("shared", ["s1"]), ("per_shard", [])])
def test_who_writes_a_topic(tmp_path: Path, topics: str, others: list[str]) -> None:
    kafka = fleet(tmp_path, f'topics = "{topics}"').shard("s2").kafka
    assert kafka.shards_of("shop.users") == ("s2", *others)
    assert kafka.shards_of("shop.s2._users") == ("s2",), "a space of the shard alone"


def test_a_daemon_for_each_shard(tmp_path: Path) -> None:
    found = fleet(tmp_path)
    assert (found.name, found.topics, list(found.shards)) == ("shop", "shared", ["s1", "s2"])
    first, second = found.shards.values()
    assert [config.name for config in (first, second)] == ["shop.s1", "shop.s2"]
    assert first.source.addresses() == [("127.0.0.1", 3301), ("127.0.0.1", 3302)]
    assert second.state.path == tmp_path / "state" / "s2"
    assert first.http == second.http


@pytest.mark.parametrize(
    ("layout", "orders", "buckets", "name"),
    [("shared", "shop.orders", "shop.s1._bucket", "shop"), ("per_shard", "shop.s1.orders", "shop.s1._bucket", "shop.s1")],
)
def test_topics(tmp_path: Path, layout: str, orders: str, buckets: str, name: str) -> None:
    """What only one daemon writes bears the shard's name, whatever the layout."""
    config = fleet(tmp_path, f'topics = "{layout}"').shard("s1")
    names, routes = names_of(config.kafka), options_of(config).routes()
    assert names.control(SCHEMA) == "shop.s1.schema"
    assert names.of_space(513, "orders", routes.of("orders")) == orders
    assert names.of_space(512, "_bucket", routes.of("_bucket")) == buckets
    assert whose(config.kafka) == (name, "s1")
    assert transactional_id(config.name, config.kafka.control_prefix) == "shop.s1"
    assert options_of(config).formats.shard == "s1"


def test_spaces_that_would_have_a_topic_of_the_fleets(tmp_path: Path) -> None:
    names = names_of(fleet(tmp_path).shard("s2").kafka)
    for space in ("s1.checkpoint", "s2.signal", "s1.buckets", "schema"):
        with pytest.raises(ConfigurationError, match="control topic"):
            names.of_space(513, space)
    apart = names_of(fleet(tmp_path, 'topics = "per_shard"').shard("s2").kafka)
    assert apart.of_space(513, "buckets") == "shop.s2.buckets"


def test_rules_may_name_the_shard(tmp_path: Path) -> None:
    """So unsharded spaces get topics of their own among shared ones."""
    rule = '[[routing.rules]]\nspaces = "marker|settings"\ntopic = "{shard}.{space}"\n'
    routes = options_of(fleet(tmp_path, 'topics = "shared"', MORE + rule).shard("s2")).routes()
    assert routes.of("marker") == Routing("s2.{space}")
    assert routes.of("orders") == Routing()
    (idle,) = routes.without_effect([])
    assert idle.startswith("routing.rules, the rule for spaces = 'marker|settings' (number 1)")


@pytest.mark.parametrize(
    ("topics", "more", "shards", "words"),
    [
        ('topics = "both"', MORE, SHARDS, 'fleet.topics: must be "shared" or "per_shard"'),
        ("topic = 1", MORE, SHARDS, "fleet.topic: no such key"),
        ("", MORE, "", "fleet.shards: is missing"),
        ("shards = {}", MORE, "", "fleet.shards: must have 1 at least"),
        ("", MORE, "[fleet.shards.s1]\nuris = []", "fleet.shards.s1.uris: must have 1 at least"),
        ("", MORE, f'[fleet.shards.s1]\nuris = ["cdc:{SECRET}@x"]', "fleet.shards.s1.uris"),
        ("", MORE, '[fleet.shards."a.b"]\nuris = ["u@h:1"]', "letters, digits, '_' and '-' only"),
        ("", MORE, SHARDS.replace("3311", "3301"), "fleet.shards.s1 and fleet.shards.s2 both name the member 127.0.0.1:3301"),
        ("", f"{MORE}\n[source]\nuris = []", SHARDS, "source.uris: a fleet's members are in fleet.shards.<shard>.uris"),
        ("", f'{MORE}\n[format]\nenvelope = "flat"', SHARDS, 'fleet.topics = "shared" needs format.envelope = "debezium"'),
        (
            "",
            f'{MORE}\n[[kafka.topics]]\npattern = "users"\nconfig = {{"cleanup.policy" = "compact"}}',
            SHARDS,
            "excludes cleanup.policy = \"compact\" (kafka.topics, pattern = 'users')",
        ),
        ("", MORE.replace("bootstrap", "bootstop"), SHARDS, "kafka.bootstrap_servers: is missing"),
    ],
)
def test_mistakes(tmp_path: Path, topics: str, more: str, shards: str, words: str) -> None:
    assert words in refusal(tmp_path, topics, more, shards)


def test_members_from_the_environment_would_be_those_of_all_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARANTOOL_CDC__SOURCE__URIS", '["u@h:1"]')
    assert "TARANTOOL_CDC__SOURCE__URIS is set" in refusal(tmp_path)


def test_which_daemon_a_command_is_about(tmp_path: Path) -> None:
    fleet(tmp_path)
    file = tmp_path / "fleet.toml"
    assert load_daemon(file, "s2").name == "shop.s2"
    with pytest.raises(ConfigurationError, match=r"this command is about one daemon.*--shard: s1, s2"):
        load_daemon(file, None)
    with pytest.raises(ConfigurationError, match=r"no shard 's3'. Its shards are s1, s2"):
        load_daemon(file, "s3")


def test_a_daemons_file(tmp_path: Path) -> None:
    text = f'name = "shop"\n[source]\nuris = ["cdc:{SECRET}@127.0.0.1:3301"]\n{MORE}'
    file = written(tmp_path, text)
    found = load(file)
    assert isinstance(found, Config)
    assert found.kafka.shard is None
    assert found.kafka.control_prefix == found.kafka.topic_prefix == "shop"
    with pytest.raises(ConfigurationError, match="--shard s1 names one of a fleet's"):
        load_daemon(file, "s1")
    with pytest.raises(ConfigurationError, match=r"\{shard\} only in the file of a fleet"):
        load(written(tmp_path, f'{text}\n[routing]\ntopic = "{{shard}}.{{space}}"'))


def test_names_of_replica_sets(tmp_path: Path) -> None:
    """vshard may call them so; by default they are the shards' names."""
    named = SHARDS.replace("[fleet.shards.s2]", '[fleet.shards.s2]\nreplicaset_name = "storage-2"')
    found = [config.kafka.shard for config in fleet(tmp_path, shards=named).shards.values()]
    assert [shard.replicaset_name for shard in found if shard is not None] == ["s1", "storage-2"]
    same = SHARDS.replace("[fleet.shards.s2]", '[fleet.shards.s2]\nreplicaset_name = "s1"')
    assert "fleet.shards.s1 and fleet.shards.s2 both have the replica set's name 's1'" in refusal(tmp_path, "", MORE, same)


def test_a_listener_for_each_shard_that_runs_alone(tmp_path: Path) -> None:
    """The fleet's process has its own."""
    own = SHARDS.replace("[fleet.shards.s2]", 'http_listen = "127.0.0.1:8086"\n[fleet.shards.s2]\nhttp_listen = ""')
    found = fleet(tmp_path, more=f'{MORE}\n[http]\nlisten = "127.0.0.1:8080"', shards=own)
    assert [config.http.listen for config in found.shards.values()] == ["127.0.0.1:8086", ""]
    assert found.shared.http.listen == "127.0.0.1:8080"
    assert "http_listen must be host:port" in refusal(tmp_path, "", MORE, own.replace('"127.0.0.1:8086"', '"8086"'))


def test_the_watchdog(tmp_path: Path) -> None:
    assert fleet(tmp_path).watchdog_seconds == 60
    assert fleet(tmp_path, "watchdog_ms = 10500").watchdog_seconds == 10.5
    for wrong in ("9999", "-1"):
        assert "fleet.watchdog_ms: must be 10000 at least, or 0 for never" in refusal(tmp_path, f"watchdog_ms = {wrong}")
    assert fleet(tmp_path, "watchdog_ms = 0").watchdog_seconds is None
