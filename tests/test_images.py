"""The Dockerfile is understood by image-check; docker-compose.yml is right, and its images are of the versions that tests run."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema.validators import validator_for

from cdc.local import containers, jars
from tests import image_check

ROOT: Final = Path(__file__).resolve().parent.parent
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def image_of(service: str) -> tuple[str, str]:
    name, _, version = COMPOSE["services"][service]["image"].partition(":")
    return name, version


def test_every_stage_of_the_dockerfile_is_understood() -> None:
    stages = {stage.name: stage for stage in image_check.stages((ROOT / "Dockerfile").read_text())}
    assert {name: stage.base for name, stage in stages.items()} == {
        "source": image_check.BASE,
        "wheel": "source",
        "daemon": image_check.BASE,
        "spark": "source",
    }
    assert [step.name for step in stages["source"].steps] == ["WORKDIR", "COPY", "RUN"]
    assert not [step for stage in stages.values() for step in stage.steps if step.text.startswith("#") or "\\\n" in step.text]


@pytest.mark.parametrize("line", ["FROM a", "RUN true", "FROM a AS b\nADD x y"])
def test_what_is_not_understood_is_said(line: str) -> None:
    with pytest.raises(ValueError, match=r"here|understood"):
        list(image_check.stages(line))


def test_compose_runs_the_versions_that_the_tests_run() -> None:
    kafka, version = image_of("kafka")
    assert f"{kafka}:{version}" == containers.KAFKA_IMAGE
    (artifact,) = [each for each in jars.KAFKA.artifacts if re.search(r":kafka_2\.\d+:", each)]
    assert version == artifact.split(":")[2]
    assert ":".join(image_of("tarantool")) == containers.TARANTOOL_IMAGE
    targets = {name: service["build"]["target"] for name, service in COMPOSE["services"].items() if "build" in service}
    assert targets == {"cdc": "daemon", "spark": "spark"}


def compose_mistakes(content: dict[str, Any]) -> list[str]:
    """What is wrong by the schema of the compose specification, which check-jsonschema brings along."""
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    return [f"{error.json_path}: {error.message}" for error in validator_for(schema)(schema).iter_errors(content)]


def test_compose_is_what_the_specification_says() -> None:
    assert compose_mistakes(COMPOSE) == []


@pytest.mark.parametrize(
    ("key", "value", "mistake"),
    [
        ("depend_on", ["kafka"], "$.services.cdc: "),
        ("ports", "8085:8085", "$.services.cdc.ports"),
        ("depends_on", {"kafka": {"condition": "healthy"}}, "$.services.cdc.depends_on"),
    ],
)
def test_what_it_does_not_say_is_found(key: str, value: Any, mistake: str) -> None:
    services = {**COMPOSE["services"], "cdc": {**COMPOSE["services"]["cdc"], key: value}}
    found = compose_mistakes({**COMPOSE, "services": services})
    assert found
    assert found[0].startswith(mistake), found


def test_what_compose_mounts_and_waits_for_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"]
        for name, needed in service.get("depends_on", {}).items():
            assert needed["condition"] == "service_started" or "healthcheck" in COMPOSE["services"][name]
