"""What an operator may get wrong ends the daemon with status 1 and a sentence that names the thing and the remedy.

What may heal by itself is waited for, in sight. A password never shows.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its annotations don't re-export these
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cdc.local.interface import KafkaServer
from cdc.local.ports import free_port
from cdc.local.servers import local_servers
from tests.live.conftest import SceneFactory
from tests.live.daemon import DaemonProcess
from tests.live.scene import Scene

PASSWORD = "correct-horse-battery"
PREFIX = "tarantool-cdc: "


def complaint(daemon: DaemonProcess, timeout_seconds: float = 120) -> str:
    """Start it; what it says at its end, with status 1."""
    daemon.start()
    assert daemon.wait_for_end(timeout_seconds) == 1, daemon.run.log_text()
    text = daemon.run.log_text()
    assert "Traceback" not in text, text
    assert PASSWORD not in text, text
    lines = text.splitlines()
    assert [line.startswith(PREFIX) for line in lines].count(True) == 1, text
    assert lines[-1].startswith(PREFIX), text
    return lines[-1].removeprefix(PREFIX)


def waits(daemon: DaemonProcess, state: str, *words: str) -> None:
    """Start it; it goes on trying, says why in its log and its status, and SIGTERM ends it with 0."""
    daemon.start()
    daemon.wait_until(
        f"it waits because of {words}",
        lambda status: status["state"] == state and all(word in (status["error"] or "") for word in words),
    )
    for word in words:
        assert word in daemon.run.log_text()
    assert daemon.terminate(20) == 0
    text = daemon.run.log_text()
    assert "Traceback" not in text
    assert PASSWORD not in text


@pytest.fixture
def users(scene: Scene) -> Scene:
    """A scene whose master has users with fewer rights, all with PASSWORD, and a row."""
    scene.tarantool.eval(
        """
        for _, name in ipairs{'bare', 'writer', 'full'} do box.schema.user.create(name, {password = ...}) end
        box.schema.user.grant('writer', 'write', 'space', '_cluster')
        box.schema.user.grant('full', 'replication')
        box.schema.user.grant('full', 'read', 'universe', nil, {if_not_exists = true})
        box.schema.space.create('things'):create_index('primary')
        box.space.things:insert{1}
        """,
        PASSWORD,
    )
    return scene


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("full:not-the-password@", ("password", "source.uris")),
        ("nobody:whatever@", ("nobody", "source.uris")),
        (f"bare:{PASSWORD}@", ("bare", "grant", "replication")),
        (f"writer:{PASSWORD}@", ("writer", "grant", "read")),
        ("", ("guest", "grant", "replication")),
    ],
    ids=["wrong password", "no such user", "no rights", "no right to read", "guest"],
)
def test_user_that_may_not(users: Scene, user: str, words: tuple[str, ...]) -> None:
    users.daemon.settings["source"]["uris"] = [f"{user}127.0.0.1:{users.tarantool.port}"]
    said = complaint(users.daemon)
    assert all(word.lower() in said.lower() for word in words), said


@pytest.mark.one_of_these("what operators meet")
def test_password_from_a_file_and_from_the_environment(users: Scene, tmp_path: Path) -> None:
    """And that user is enough for all of the daemon's work."""
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    source = {"uris": [f"full@127.0.0.1:{users.tarantool.port}"]}
    from_file = users.new_daemon(source={**source, "password_file": str(file)})
    from_environment = users.new_daemon(source=source, state=from_file.settings["state"])
    from_environment.environment["TARANTOOL_CDC__SOURCE__PASSWORD"] = PASSWORD
    for daemon in (from_file, from_environment):
        daemon.start("--until-caught-up")
        assert daemon.wait_for_end() == 0, daemon.run.log_text()
        assert PASSWORD not in daemon.run.log_text()
    users.check()


def test_password_file_that_is_not_there(users: Scene) -> None:
    users.daemon.settings["source"].update(uris=[f"full@127.0.0.1:{users.tarantool.port}"], password_file="/nowhere/password")
    said = complaint(users.daemon)
    assert "source.password_file can't be read: No such file or directory" in said
    assert "/nowhere/password" not in said, "what stands there may be a password in the wrong place"


@pytest.fixture
def talker() -> Iterator[int]:
    """The port of a server of another kind, which speaks first, as SSH and SMTP do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail.example.com ESMTP ready and waiting for your letters\r\n" * 4)

        threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])


def test_port_of_a_server_that_greets_as_something_else(scene: Scene, talker: int) -> None:
    scene.daemon.settings["source"]["uris"] = [f"cdc:{PASSWORD}@127.0.0.1:{talker}"]
    said = complaint(scene.daemon)
    assert f"127.0.0.1:{talker}" in said
    assert "source.uris" in said


@pytest.mark.one_of_these("what operators meet")
def test_nobody_answers_as_a_master(scene: Scene) -> None:
    """Not to be told from one that restarts, or whose name is not known yet: the daemon waits, and says so."""
    port = free_port()
    scene.daemon.settings["source"]["uris"] = [f"cdc:{PASSWORD}@127.0.0.1:{port}"]
    unknown = scene.new_daemon("unknown-host", source={"uris": [f"cdc:{PASSWORD}@no-such-host.invalid:3301"]})
    silent = scene.new_daemon(
        "silent-port",
        source={"uris": [f"cdc:{PASSWORD}@{scene.kafka.bootstrap_servers}"]},
        kafka={"topic_prefix": f"{scene.prefix}-2"},
    )
    unknown.settings["kafka"]["topic_prefix"] = f"{scene.prefix}-3"
    silent.start()  # it takes a while to find out, so it goes first
    waits(scene.daemon, "connecting", f"127.0.0.1:{port}", "source.uris")
    waits(unknown, "connecting", "no-such-host.invalid", "source.uris")
    silent.wait_until("it says that nobody speaks", lambda status: "source.uris" in (status["error"] or ""))
    assert silent.terminate(20) == 0


@pytest.mark.one_of_these("what operators meet")
def test_nobody_answers_as_kafka(scene: Scene) -> None:
    address = f"127.0.0.1:{free_port()}"
    scene.daemon.settings["kafka"]["bootstrap_servers"] = address
    waits(scene.daemon, "waiting for kafka", address, "kafka.bootstrap_servers")


def test_topics_that_may_not_be_created(scene: Scene) -> None:
    scene.daemon.settings["kafka"]["create_topics"] = False
    said = complaint(scene.daemon)
    assert f"{scene.prefix}.checkpoint" in said
    assert "kafka.create_topics" in said


@pytest.mark.one_of_these("what operators meet")
def test_http_port_that_is_taken(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        scene.daemon.settings["http"]["listen"] = listen
        said = complaint(scene.daemon)
    assert listen in said
    assert "http.listen" in said


@pytest.mark.parametrize("when", ["before", "after"])
def test_synchronous_space(scene: Scene, when: str) -> None:
    """Its rows come out when they are certain, also if it is new to the daemon."""
    create = "box.schema.space.create('ledger', {is_sync = true}):create_index('primary')"
    scene.tarantool.eval("box.cfg{replication_synchro_quorum = 1}")
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary') box.space.things:insert{1}")
    if when == "before":
        scene.tarantool.eval(create)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    if when == "after":
        scene.tarantool.eval(create)
    scene.tarantool.eval("box.space.things:insert{2} box.space.ledger:insert{1}")
    scene.catch_up()
    events = [(event.source["table"], event.value["after"]) for event in scene.check().events]
    assert events[-2:] == [("things", {"field_1": 2}), ("ledger", {"field_1": 1})]


def test_all_mistakes_of_a_configuration_are_listed(scene: Scene) -> None:
    scene.daemon.settings["source"].update(uris=[f"cdc:{PASSWORD}@host"], mode="registred", ack_interval_ms=0)
    scene.daemon.settings["kafka"].update(delivery="exactly-once", partitons=3, properties={"acks": 1})
    scene.daemon.settings["spaces"] = {"include": ["("]}
    scene.daemon.settings["htpp"] = {"listen": ""}
    scene.daemon.start()
    assert scene.daemon.wait_for_end() == 1
    text = scene.daemon.run.log_text()
    assert PASSWORD not in text
    assert "Traceback" not in text
    keys = (
        "source.mode",
        "source.ack_interval_ms",
        "kafka.delivery",
        "kafka.partitons",
        "spaces.include, the first of the list",
        "htpp",
    )
    assert [key for key in keys if f"  {key}: " not in text] == [], text


@pytest.fixture(scope="module")
def strict_kafka(broker_folder: Callable[[str], Path]) -> Iterator[KafkaServer]:
    """A broker that keeps rules: what no rule speaks of is allowed."""
    with local_servers(broker_folder("strict-kafka")) as started:
        yield started.start_kafka(
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "true",
            },
            heap="512m",
        )


def deny(kafka: KafkaServer, kind: Any, name: str, operation: Any) -> None:
    """Forbid everybody an operation on what has this name."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    rule = AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, AclPermissionType.DENY)
    for outcome in admin.create_acls([rule]).values():
        outcome.result(60)


@pytest.mark.one_of_these("what operators meet")
@pytest.mark.parametrize(
    ("topic", "delivery"),
    [
        ("things", "exactly_once"),
        ("checkpoint", "exactly_once"),
        ("snapshot", "at_least_once"),
        pytest.param("things", "at_least_once", marks=pytest.mark.soak),
        pytest.param("checkpoint", "at_least_once", marks=pytest.mark.soak),
        pytest.param("snapshot", "exactly_once", marks=pytest.mark.soak),
    ],
)
def test_forbidden_topic(scene_factory: SceneFactory, strict_kafka: KafkaServer, topic: str, delivery: str) -> None:
    scene = scene_factory(strict_kafka)
    scene.daemon.settings["kafka"]["delivery"] = delivery
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary') box.space.things:insert{1}")
    deny(strict_kafka, ResourceType.TOPIC, f"{scene.prefix}.{topic}", AclOperation.WRITE)
    said = complaint(scene.daemon)
    assert f"{scene.prefix}.{topic}" in said
    assert "WRITE" in said


@pytest.mark.soak
def test_topic_that_the_daemon_may_not_see(scene_factory: SceneFactory, strict_kafka: KafkaServer) -> None:
    """It is made, and stays absent from the list of all topics."""
    scene = scene_factory(strict_kafka)
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary') box.space.things:insert{1}")
    deny(strict_kafka, ResourceType.TOPIC, f"{scene.prefix}.things", AclOperation.DESCRIBE)
    said = complaint(scene.daemon)
    assert f"may not see the topic {scene.prefix}.things" in said
    assert "DESCRIBE" in said


def test_forbidden_transactional_id(scene_factory: SceneFactory, strict_kafka: KafkaServer) -> None:
    scene = scene_factory(strict_kafka)
    deny(strict_kafka, ResourceType.TRANSACTIONAL_ID, scene.prefix, AclOperation.WRITE)
    said = complaint(scene.daemon)
    assert "transactional id" in said
    assert scene.prefix in said


@pytest.mark.one_of_these("what operators meet")
def test_topics_that_nobody_may_create(scene_factory: SceneFactory, strict_kafka: KafkaServer) -> None:
    scene = scene_factory(strict_kafka)
    deny(strict_kafka, ResourceType.TOPIC, f"{scene.prefix}.checkpoint", AclOperation.CREATE)
    said = complaint(scene.daemon)
    assert f"{scene.prefix}.checkpoint" in said
    assert "CREATE" in said
