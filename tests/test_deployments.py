"""The examples for Kubernetes and systemd: options, keys, ports and paths that they name exist, and fit each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cdc import __version__
from cdc.cli import _parser
from cdc.config import Config
from cdc.config.fleet import Fleet, load, load_daemon
from cdc.ops.service_manager import TELL_SECONDS
from cdc.ops.status import LIFELESS_SECONDS

ROOT: Final = Path(__file__).resolve().parent.parent
MANIFESTS: Final = sorted((ROOT / "config" / "kubernetes").glob("*.yaml"))
UNIT: Final = ROOT / "config" / "systemd" / "tarantool-cdc.service"
KINDS: Final = {
    "ConfigMap": "v1",
    "StatefulSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "Service": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
"""The kinds that the examples use, each with the version of its API. Secrets are only referred to."""
SECRETS: Final = {"source-password": "s3cret", "kafka-properties": json.dumps({"sasl.mechanism": "SCRAM-SHA-512"})}


def check_keys(node: Any) -> None:
    """As Kubernetes reads them: a key that is there twice is a mistake."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
        for _, value in node.value:
            check_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            check_keys(value)


def objects(manifest: Path) -> list[dict[str, Any]]:
    text = manifest.read_text()
    for node in yaml.compose_all(text, yaml.SafeLoader):
        check_keys(node)
    return list(yaml.safe_load_all(text))


def of_kind(manifest: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in objects(manifest) if each["kind"] == kind]


def pods(manifest: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """The stateful sets, their pods, and the one container of each."""
    for stateful in of_kind(manifest, "StatefulSet"):
        pod = stateful["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield stateful, pod, container


def configured(manifest: Path, container: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration that a container gets, from its own arguments, environment and files."""
    for variable in container["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        assert "value" not in variable, "a secret is referred to"
        monkeypatch.setenv(variable["name"], SECRETS[reference["key"]])
    options = _parser().parse_args(container["args"])
    assert options.command.__name__ == "_run"
    (files,) = [each["data"] for each in of_kind(manifest, "ConfigMap")]
    assert options.config.name in files
    file = folder / options.config.name
    file.write_text(files[options.config.name])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(options.config.parent) == mounts["config"]
    return load_daemon(file, options.shard)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_the_objects_are_what_they_claim_to_be(manifest: Path) -> None:
    found = objects(manifest)
    assert {each["kind"] for each in found} == set(KINDS)
    for each in found:
        assert each["apiVersion"] == KINDS[each["kind"]]
        assert re.fullmatch(r"[a-z0-9-]{1,63}", each["metadata"]["name"])
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_container_finds_what_it_names(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handled = set(re.findall(r'case "(/\w+)":', (ROOT / "cdc" / "ops" / "http.py").read_text()))
    for stateful, pod, container in pods(manifest):
        config = configured(manifest, container, tmp_path, monkeypatch)
        assert config.kafka.properties["sasl.mechanism"] == "SCRAM-SHA-512"
        assert config.source.members()[0].password is not None
        assert config.standby == (stateful["spec"]["replicas"] > 1), "a second daemon of a name waits"
        (port,) = container["ports"]
        assert config.http.address == ("0.0.0.0", port["containerPort"])
        probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
        assert {probe["port"] for probe in probes.values()} == {port["name"]}
        assert (probes["livenessProbe"]["path"], probes["readinessProbe"]["path"]) == ("/health", "/ready")
        assert {probe["path"] for probe in probes.values()} <= handled
        assert pod["terminationGracePeriodSeconds"] * 1000 > config.kafka.stop_timeout_ms
        assert container["image"] == f"tarantool-cdc:{__version__}"
        # What is written to are volumes: of the pod's own, or of one made for the pod.
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
        assert {name for path, name in mounts.items() if config.state.path.is_relative_to(path)} == claims
        assert set(mounts.values()) == claims | {volume["name"] for volume in pod["volumes"]}
        (files,) = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        assert files == of_kind(manifest, "ConfigMap")[0]["metadata"]["name"]


def test_a_namespace_may_have_all_of_them() -> None:
    """No object of one file replaces that of another, and no selector meets another's pods."""
    names = [(each["kind"], each["metadata"]["name"]) for manifest in MANIFESTS for each in objects(manifest)]
    assert len(names) == len(set(names))
    for manifest in MANIFESTS:
        others = [stateful for other in MANIFESTS if other != manifest for stateful, *_ in pods(other)]
        for each in objects(manifest):
            selector = each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector") or {}
            selector = selector.get("matchLabels", selector)
            for stateful in others if selector else ():
                assert not selector.items() <= stateful["spec"]["template"]["metadata"]["labels"].items(), each["metadata"]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_the_listener_answers_to_the_names_of_the_pods(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a browser, or Prometheus by a name, is answered with 421."""
    names = set()
    for stateful, _, container in pods(manifest):
        allowed = set(configured(manifest, container, tmp_path, monkeypatch).http.allowed_hosts)
        name, service = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
        names |= {f"{name}-{number}.{service}" for number in range(stateful["spec"]["replicas"])}
    assert allowed == names


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_selectors_meet_their_pods_and_no_others(manifest: Path) -> None:
    sets = of_kind(manifest, "StatefulSet")
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in sets}
    (service,) = of_kind(manifest, "Service")
    for each in sets:
        name, selector = each["metadata"]["name"], each["spec"]["selector"]["matchLabels"]
        assert [other for other, its in labels.items() if selector.items() <= its.items()] == [name]
        (term,) = each["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["labelSelector"]["matchLabels"] == selector
        assert service["spec"]["selector"].items() <= labels[name].items()
        assert each["spec"]["serviceName"] == service["metadata"]["name"]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in of_kind(manifest, "PodDisruptionBudget")]
    assert budgets == [each["spec"]["selector"]["matchLabels"] for each in sets]
    (policy,) = of_kind(manifest, "NetworkPolicy")
    assert all(policy["spec"]["podSelector"]["matchLabels"].items() <= its.items() for its in labels.values())
    assert {rule["port"] for each in policy["spec"]["ingress"] for rule in each["ports"]} == {"http"}


def test_every_shard_of_the_fleet_has_its_daemons(tmp_path: Path) -> None:
    manifest = ROOT / "config" / "kubernetes" / "fleet.yaml"
    file = tmp_path / "fleet.toml"
    file.write_text(of_kind(manifest, "ConfigMap")[0]["data"]["fleet.toml"])
    fleet = load(file)
    assert isinstance(fleet, Fleet)
    assert [_parser().parse_args(container["args"]).shard for _, _, container in pods(manifest)] == list(fleet.shards)


# systemd.


def settings(name: str) -> list[str]:
    """The values of a unit's setting, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_and_its_steps_name_what_there_is(tmp_path: Path) -> None:
    (command,) = settings("ExecStart")
    program, *arguments = shlex.split(command)
    options = _parser().parse_args(arguments)
    assert (Path(program).name, options.command.__name__) == ("tarantool-cdc", "_run")
    assert (settings("Type"), settings("NotifyAccess")) == (["notify"], ["main"]), "it tells that it is well"
    assert settings("WatchdogSignal") == ["SIGUSR2"], "it prints the stacks, and SIGKILL follows"
    assert 0 < int(settings("TimeoutAbortSec")[0]) < int(settings("TimeoutStopSec")[0])
    assert TELL_SECONDS * 10 < int(settings("WatchdogSec")[0]) <= LIFELESS_SECONDS
    file = options.config.name
    steps = (
        (ROOT / "docs" / "operations.md").read_text().partition("### As a service")[2].partition("```sh")[2].partition("```")[0]
    )
    assert f"check --config {options.config}" in steps, "as the service runs"
    (secret,) = {Path(place).name for place in re.findall(r"/etc/tarantool-cdc/(\S+-password)", steps)}
    password = tmp_path / secret
    password.write_text("s3cret")
    password.chmod(0o640)
    kafka = '{ bootstrap_servers = "k:9092", topic_prefix = "shop" }'
    source = f'{{ uris = ["m:3301"], user = "cdc", password_file = "{secret}" }}'
    assert f'source.password_file = "{secret}"' in steps
    (tmp_path / file).write_text(f'name = "shop"\nsource = {source}\nkafka = {kafka}\n')
    config = load_daemon(tmp_path / file, None)
    (member,) = config.source.members()
    assert member.password is not None
    assert member.password.get_secret_value() == "s3cret"
    assert int(settings("TimeoutStopSec")[0]) * 1000 > config.kafka.stop_timeout_ms


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_finds_nothing_to_complain_of(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
