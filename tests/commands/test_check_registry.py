"""What `check` says of the registry of schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdc.commands import check
from cdc.commands.check_start import Finding, of_registry
from cdc.config import Config, parse
from cdc.schema.forms import StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.commits.checkpoint import Checkpoint
from tests.fakes.registry import FakeRegistry


def config(**registry: Any) -> Config:
    """A daemon's, whose values need a registry."""
    values = {
        "name": "shop",
        "source": {"uris": ["h:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "format": {"value": "avro", "registry": registry},
    }
    return parse(values, "a test")


def test_a_registry_that_answers() -> None:
    with FakeRegistry(user="cdc:secret") as registry:
        (line,) = of_registry(config(url=registry.url, user="cdc", password="secret"))
        assert str(line) == f"format.registry: {registry.url} answers"
        (line,) = of_registry(config(url=registry.url))
        assert "FAILED" in str(line)
        assert "refuses this user" in line.sentence


def test_a_registry_that_is_away(tmp_path: Path) -> None:
    with FakeRegistry() as registry:
        url = registry.url
    (line,) = of_registry(config(url=url))
    assert line.may_heal
    assert "can't be reached" in line.sentence
    (line,) = of_registry(config(url=url, user="cdc", password_file=str(tmp_path / "missing")))
    assert "format.registry.password_file can't be read" in line.sentence


def test_no_registry_is_needed() -> None:
    values = {"name": "shop", "source": {"uris": ["h:1"]}, "kafka": {"bootstrap_servers": "k:1", "topic_prefix": "shop"}}
    assert not list(of_registry(parse(values, "a test")))


def test_schemas_that_the_daemon_may_not_register() -> None:
    """Each of them is named, so that one look is enough to register all."""
    fields = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}]
    spaces = [
        StoredSpace(number, [number, 1, name, "memtx", 0, {}, fields], {0: [number, 0, "pk", "tree", {}, [[0, "unsigned"]]]}, 0)
        for number, name in enumerate(("users", "orders"), 512)
    ]

    def found(**registry: Any) -> list[Finding]:
        everything = check._published(config(**registry), SchemaTracker(spaces), None, Checkpoint(), lambda _: None)
        return [finding for finding in everything if finding.key == "format.registry"]

    with FakeRegistry() as registry:
        assert not found(url=registry.url)
        missing = found(url=registry.url, auto_register=False)
        assert [finding.sentence.split("'")[2] for finding in missing] == ["shop.users-value", "shop.orders-value"]
        for finding in missing:
            assert finding.may_heal
            registry.register(finding.sentence.split("'")[2], finding.sentence.partition("exactly this schema: ")[2])
        assert not found(url=registry.url, auto_register=False)
    assert not found(url=registry.url, auto_register=False)  # it is away, as another finding says
