"""What the daemon may do in Kafka: with the rights that docs/kafka-acls.md lists it works, and each that is lacking is named."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its annotations don't re-export these
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cdc.config import parse
from cdc.kafka import rights
from cdc.local.kafka_secured import SecuredKafka
from tests.conftest import KAFKA_USERS
from tests.live import replica
from tests.live.conftest import SceneFactory
from tests.live.scene import Scene
from tests.live.test_modes import read

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kafka-acls.md"
KINDS = {"--topic": ResourceType.TOPIC, "--transactional-id": ResourceType.TRANSACTIONAL_ID, "--group": ResourceType.GROUP}
LAST_LINES = 20


def commands() -> list[str]:
    """The document's commands for a daemon that belongs to no fleet."""
    alone, of_fleet, _ = DOCUMENT.read_text().partition("The daemons of a [fleet]")
    assert of_fleet
    return re.findall(r"^kafka-acls\.sh .*$", alone, re.MULTILINE)


def documented(name: str) -> dict[str, AclBinding]:
    """The commands of the document, for a daemon of this name and prefix."""
    found = {}
    for line in commands():
        words = shlex.split(line)
        options = dict(itertools.pairwise(words))
        (kind,) = KINDS.keys() & set(words)
        pattern = ResourcePatternType.PREFIXED if options.get("--resource-pattern-type") else ResourcePatternType.LITERAL
        operation = options["--operation"]
        found[f"{operation} {kind[2:]}"] = AclBinding(
            KINDS[kind],
            options[kind].replace("shop", name),
            pattern,
            options["--allow-principal"],
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
    return found


@pytest.fixture
def admin(secured_kafka: SecuredKafka) -> AdminClient:
    """Who grants rights, which are for one scene's topics alone."""
    return AdminClient({"bootstrap.servers": secured_kafka.bootstrap_servers, "log_level": 0})


def grant(admin: AdminClient, *bindings: AclBinding) -> None:
    for outcome in admin.create_acls(list(bindings)).values():
        outcome.result(30)


def take_away(admin: AdminClient, *bindings: AclBinding) -> None:
    filters = [
        AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for one in bindings
    ]
    for outcome in admin.delete_acls(filters).values():
        assert outcome.result(30)


@pytest.fixture
def secured_scene(scene_factory: SceneFactory, secured_kafka: SecuredKafka) -> Scene:
    """Its daemon logs in, and has no rights yet."""
    scene = scene_factory(secured_kafka)
    (user, password) = next(iter(KAFKA_USERS.items()))
    scene.daemon.settings["kafka"]["bootstrap_servers"] = secured_kafka.secured_servers
    scene.daemon.settings["kafka"]["properties"] |= {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }
    scene.workload.create(50)
    return scene


def finish(scene: Scene) -> None:
    """With all rights again everything comes out, and once where that was promised."""
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    if scene.daemon.settings["kafka"]["delivery"] == "exactly_once":
        scene.check()
    else:
        replica.compare(replica.fold(read(scene), has_images=False), scene.tarantool)


def test_document_lists_what_is_needed() -> None:
    kafka = {"bootstrap_servers": "kafka:9092", "topic_prefix": "shop", "properties": {"sasl.username": "cdc"}}
    config = parse({"name": "shop", "source": {"uris": ["a@b:1"]}, "kafka": kafka}, "the test")
    assert commands() == rights.grant(rights.needed("shop", config.kafka), config.kafka).split("; ")


@pytest.mark.parametrize("delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.soak)])
def test_each_right_is_needed_and_named(secured_scene: Scene, admin: AdminClient, delivery: str) -> None:
    """All but one, in turn: `check` and `run` end with its name and the command for it. With all of them everything works."""
    scene, daemon = secured_scene, secured_scene.daemon
    daemon.settings["kafka"]["delivery"] = delivery
    rights = documented(scene.prefix)
    grant(admin, *rights.values())
    daemon.start("--until-caught-up")
    assert daemon.wait_for_end() == 0, daemon.run.log_tail(LAST_LINES)
    if delivery == "exactly_once":
        daemon.start(command="check")
        assert daemon.wait_for_end() == 0, daemon.run.log_tail(LAST_LINES)
    for right, binding in rights.items():
        if delivery == "at_least_once" and right not in ("WRITE topic", "READ topic"):
            continue  # the way of delivery makes no difference for these
        scene.run_workload(3)
        take_away(admin, binding)
        operation, kind = right.split()
        sentence = f"Kafka doesn't allow this daemon {operation} on the {kind.replace('-', ' ').replace('topic', 'topics', 1)}"
        if kind == "topic" and operation == "CREATE":
            scene.tarantool.eval(f"box.schema.space.create('new_{delivery}'):create_index('pk')")
            scene.tarantool.eval(f"box.space.new_{delivery}:insert{{1}}")
        for command in ("check", "run") if delivery == "exactly_once" else ("run",):
            daemon.start(command=command)
            assert daemon.wait_for_end(30) == 1, f"{command} without {right}:\n{daemon.run.log_tail(LAST_LINES)}"
            log = daemon.run.log_text()
            assert sentence in log, f"{command} without {right}:\n{log}"
            option = f"--operation {operation} --{kind} {binding.name}"
            assert option in log
            assert "Two daemons" not in log
        grant(admin, binding)
    finish(scene)


@pytest.mark.one_of_these
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_write_is_lacking_on_one_topic_in_the_stream(secured_scene: Scene, admin: AdminClient, delivery: str) -> None:
    """The first error is told, not that of the abort after it; and the daemon ends."""
    scene, daemon = secured_scene, secured_scene.daemon
    daemon.settings["kafka"]["delivery"] = delivery
    rights = documented(scene.prefix)
    grant(admin, *rights.values())
    scene.tarantool.eval("box.schema.space.create('denied'):create_index('pk')")
    scene.tarantool.eval("box.space.denied:insert{1}")
    daemon.start()
    daemon.wait_until_streaming()
    scene.catch_up()
    topic = f"{scene.prefix}.denied"
    denied = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:cdc",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    grant(admin, denied)
    # Many batches in one Kafka transaction: it has failed before the last of them is handed over, and before it is committed.
    daemon.settings["kafka"] |= {"commit_interval_ms": 3_000, "commit_pause_ms": 3_000}
    scene.tarantool.eval(
        "require('fiber').create(function() for id = 2, 400 do box.space.denied:insert{id} require('fiber').sleep(0.01) end end)"
    )
    daemon.restart_killed()
    assert daemon.wait_for_end(30) == 1, daemon.run.log_tail(LAST_LINES)
    log = daemon.run.log_text()
    assert "Kafka doesn't allow this daemon WRITE on the topics" in log
    assert "Two daemons" not in log
    take_away(admin, denied)
    finish(scene)


@pytest.mark.parametrize("command", ["run", "check"])
def test_wrong_password(secured_scene: Scene, admin: AdminClient, command: str) -> None:
    """Is told as such and at once, not as brokers that can't be reached, and without the password."""
    scene, daemon = secured_scene, secured_scene.daemon
    grant(admin, *documented(scene.prefix).values())
    daemon.settings["kafka"]["properties"]["sasl.password"] = "not-the-secret"
    daemon.start(command=command)
    assert daemon.wait_for_end(30) == 1
    log = daemon.run.log_text()
    assert "refuses the daemon's login" in log
    assert "sasl.* in kafka.properties" in log
    assert "can't be reached" not in log
    assert "not-the-secret" not in log
