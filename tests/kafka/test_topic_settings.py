"""Settings of topics that would let needed records expire: corrected where nobody has set them, else told with the remedy."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigSource  # type: ignore[attr-defined]  # it is documented

from cdc.config import KafkaSection
from cdc.events.topics import TopicNames
from cdc.kafka.topic_settings import Setting, expiries, keep_records, read

CONFIG = KafkaSection(bootstrap_servers="k:1", topic_prefix="shop")
FORBIDDEN = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Admin:
    """Settings as (value, whether the topic has it itself), by topic; and what was set."""

    def __init__(self, topics: dict[str, dict[str, tuple[str, bool]]], *, may_read: bool = True, may_alter: bool = True) -> None:
        self._topics = topics
        self._may_read, self._may_alter = may_read, may_alter
        self.altered: dict[str, dict[str, str]] = {}

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        found = {}
        for resource in resources:
            own, inherited = ConfigSource.DYNAMIC_TOPIC_CONFIG.value, ConfigSource.DEFAULT_CONFIG.value
            entries = {
                name: SimpleNamespace(value=value, source=own if is_own else inherited)
                for name, (value, is_own) in self._topics[resource.name].items()
            }
            found[resource] = answer(entries if self._may_read else FORBIDDEN)
        return found

    def incremental_alter_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        (resource,) = resources
        if not self._may_alter:
            return {resource: answer(FORBIDDEN)}
        self.altered[resource.name] = {entry.name: entry.value for entry in resource.incremental_configs}
        return {resource: answer(None)}


def answer(result: Any) -> Future[Any]:
    future = Future[Any]()
    if isinstance(result, KafkaError):
        future.set_exception(KafkaException(result))
    else:
        future.set_result(result)
    return future


def former(*, is_own: bool = False) -> dict[str, dict[str, tuple[str, bool]]]:
    """The snapshot topic as older versions made it."""
    limits = {"retention.ms": ("604800000", is_own), "retention.bytes": ("-1", False)}
    return {"shop.snapshot": {"cleanup.policy": ("delete", False), **limits}}


def keep(admin: Admin, config: KafkaSection = CONFIG) -> list[str]:
    with structlog.testing.capture_logs() as logs:
        keep_records(cast(AdminClient, admin), config, admin._topics)
    return [entry["event"] for entry in logs if entry["log_level"] == "warning"]


def test_what_nobody_has_set_is_corrected() -> None:
    admin = Admin(former() | {"shop.schema": {"cleanup.policy": ("delete", False)}})
    assert keep(admin) == []
    assert admin.altered == {"shop.snapshot": {"retention.ms": "-1"}, "shop.schema": {"cleanup.policy": "compact"}}


@pytest.mark.parametrize(
    ("admin", "config"),
    [
        (Admin(former(is_own=True)), CONFIG),
        (Admin(former(), may_alter=False), CONFIG),
        (Admin(former()), CONFIG.model_copy(update={"create_topics": False})),
    ],
    ids=["somebody has set it", "forbidden", "topics are the operator's"],
)
def test_anything_else_is_told_with_the_command(admin: Admin, config: KafkaSection) -> None:
    (said,) = keep(admin, config)
    assert said.startswith("the topic shop.snapshot: its retention.ms is 604800000, so Kafka deletes the ends of snapshots")
    assert said.endswith("--alter --entity-type topics --entity-name shop.snapshot --add-config retention.ms=-1")
    assert not admin.altered


def test_who_may_not_read_settings_learns_nothing() -> None:
    admin = Admin(former(), may_read=False)
    assert keep(admin) == []
    assert read(cast(AdminClient, admin), ["shop.snapshot"]) == {}
    assert read(cast(AdminClient, admin), []) == {}


def test_which_settings_keep_the_records() -> None:
    def topics(policy: str, ms: str = "604800000", size: str = "-1") -> dict[str, dict[str, Setting]]:
        found = {"cleanup.policy": policy, "retention.ms": ms, "retention.bytes": size}
        settings = {name: Setting(value) for name, value in found.items()}
        return {"shop.checkpoint": settings, "shop.schema": settings, "shop.snapshot": settings, "shop.users": settings}

    def correct(found: dict[str, dict[str, Setting]]) -> dict[str, dict[str, str]]:
        return {expiry.topic.removeprefix("shop."): dict(expiry.correct) for expiry in expiries(TopicNames("shop"), found)}

    compact = {"cleanup.policy": "compact"}
    assert correct(topics("compact")) == {}
    assert correct(topics("delete", "-1")) == {"checkpoint": compact, "schema": compact}
    assert correct(topics("compact,delete"))["snapshot"] == {"retention.ms": "-1"}
    assert correct(topics("delete", "-1", "1000"))["snapshot"] == {"retention.bytes": "-1"}
    assert correct(topics("delete", "1", "1"))["snapshot"] == {"retention.ms": "-1", "retention.bytes": "-1"}
