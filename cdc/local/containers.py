"""The same servers as containers, for machines with a running Docker engine.

Written against the documented behaviour of the images and of testcontainers, and not run where this project is built, because
there is no Docker engine. If this process is killed, testcontainers' own reaper removes the containers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdc.local.caches import Memcached, Redis
from cdc.local.errors import LocalServerError
from cdc.local.kafka import SINGLE_NODE_PROPERTIES, Kafka
from cdc.local.opensearch import OpenSearch
from cdc.local.options import TarantoolOptions
from cdc.local.server import LocalServer
from cdc.local.supervised import Supervised
from cdc.local.tarantool import INSTANCE_FILE, INSTANCE_VARIABLE, Tarantool

TARANTOOL_IMAGE = "tarantool/tarantool:2.11"
KAFKA_IMAGE = "apache/kafka:4.3.1"
OPENSEARCH_IMAGE = "opensearchproject/opensearch:2.19.3"
REDIS_IMAGE = "redis:7-alpine"
MEMCACHED_IMAGE = "memcached:1.6-alpine"

_ENGINE_TIMEOUT_SECONDS = 3
_WORK_DIR = "/work_dir"
_SCRIPT = "/opt/tarantool-cdc/instance.lua"
_ALIAS = "tarantool-"
_CONTROLLER = "CONTROLLER://0.0.0.0:9093"


@functools.cache
def docker_engine_answers() -> bool:
    """Return whether an engine can be used from here; a `docker` program alone isn't enough. Checked once per process."""
    try:
        import docker
        import requests
        import testcontainers  # noqa: F401
    except ImportError:  # the extra `local` isn't installed
        return False
    try:
        return bool(docker.from_env(timeout=_ENGINE_TIMEOUT_SECONDS).ping())
    except (docker.errors.DockerException, requests.RequestException):
        return False


class ContainerRun(Supervised):
    """One run of a container, from a start to its end. The container remains for the next run."""

    def __init__(self, name: str, container: Any, log_start: int) -> None:
        """`container` is running; `log_start` is the size of its log when it was started, in bytes."""
        super().__init__(name)
        self._container = container
        self._log_start = log_start

    @property
    def pid(self) -> int:
        self._container.reload()
        return int(self._container.attrs["State"]["Pid"])

    def exit_status(self, wait_seconds: float = 0) -> int | None:
        import requests

        if wait_seconds:
            # A timeout raises one of several of these errors; the status below decides.
            with contextlib.suppress(requests.RequestException):
                self._container.wait(timeout=wait_seconds)
        self._container.reload()
        ended = self._container.status in ("exited", "dead")
        return int(self._container.attrs["State"]["ExitCode"]) if ended else None

    def log_text(self) -> str:
        return bytes(self._container.logs())[self._log_start :].decode(errors="replace")

    def terminate(self, timeout_seconds: float = 60) -> int:
        status = self._signal("SIGTERM", timeout_seconds)
        if status is None:
            self.kill()
            raise LocalServerError(
                f"{self.name} didn't end within {timeout_seconds:g} s of SIGTERM and was killed.\n{self.log_tail()}"
            )
        return status

    def kill(self) -> None:
        self._signal("SIGKILL", timeout_seconds=60)

    def pause(self) -> None:
        self._container.pause()

    def resume(self) -> None:
        self._container.unpause()

    def _signal(self, signal: str, timeout_seconds: float) -> int | None:
        status = self.exit_status()
        if status is not None:
            return status
        if self._container.status == "paused":
            self._container.unpause()
        self._container.kill(signal)
        return self.exit_status(wait_seconds=timeout_seconds)


class TarantoolContainer(Tarantool):
    """`Tarantool` in a container, with the host's folder as its work_dir and the same port inside and outside."""

    def __init__(
        self,
        work_dir: Path,
        options: TarantoolOptions | None = None,
        *,
        port: int | None = None,
        name: str = "Tarantool",
    ) -> None:
        """Take the same parameters as `Tarantool`."""
        super().__init__(work_dir, options, port=port, name=name)
        self._container: Any = None

    def close(self) -> None:
        """Stop the server for good, and remove the container."""
        super().close()
        _remove(self._container)
        self._container = self._run = None

    def _spawn(self) -> Supervised:
        from testcontainers.core.container import DockerContainer

        self.work_dir.mkdir(parents=True, exist_ok=True)
        # A new container for each run: all lasting data is in the folder, and the readiness token belongs to one run.
        _remove(self._container)
        # Inside, 127.0.0.1 is the container itself.
        peers = [re.sub(r"127\.0\.0\.1:(\d+)$", rf"{_ALIAS}\1:\1", peer) for peer in self._options.replication]
        options = replace(self._options, replication=peers)
        configuration = self._instance_configuration(options, f"0.0.0.0:{self.port}", Path(_WORK_DIR))
        self._container = (
            DockerContainer(TARANTOOL_IMAGE)
            .with_env(INSTANCE_VARIABLE, configuration)
            .with_volume_mapping(str(INSTANCE_FILE), _SCRIPT, "ro")
            .with_volume_mapping(str(self.work_dir), _WORK_DIR, "rw")
            .with_network(_network())
            .with_network_aliases(f"{_ALIAS}{self.port}")
            # Not the image's own entry point, which configures an instance in its own way.
            .with_kwargs(entrypoint=["tarantool", _SCRIPT], user=f"{os.getuid()}:{os.getgid()}", working_dir=_WORK_DIR)
        )
        return _start(self.name, self._container, self.port)

    def _found_port_taken(self, log_text: str) -> bool:  # noqa: ARG002
        return False  # Docker refuses such a container before it runs


class _Contained(LocalServer):
    """A server whose data lives in its container, until `close`."""

    _container: Any = None
    _port: int

    def close(self) -> None:
        """Stop the server for good, and remove the container."""
        super().close()
        _remove(self._container)
        self._container = self._run = None

    def _image(self) -> Any:
        raise NotImplementedError

    def _spawn(self) -> Supervised:
        if self._container is not None:
            container = self._container.get_wrapped_container()
            log_start = len(container.logs())
            container.start()
            return ContainerRun(self.name, container, log_start)
        self._container = self._image()
        return _start(self.name, self._container, self._port)

    def _found_port_taken(self, log_text: str) -> bool:  # noqa: ARG002
        return False  # Docker refuses such a container before it runs


class KafkaContainer(_Contained, Kafka):
    """`Kafka` in a container; the `directory` isn't used."""

    def _image(self) -> Any:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(KAFKA_IMAGE).with_env("KAFKA_HEAP_OPTS", f"-Xmx{self._heap}")
        container.with_env("KAFKA_OPTS", " ".join(self._compilation))
        for key, value in {**self._node_properties(), **SINGLE_NODE_PROPERTIES, **self._properties}.items():
            container.with_env(_image_variable(key), value)
        return container

    def _node_properties(self) -> dict[str, str]:
        return {
            **super()._node_properties(),
            "listeners": f"PLAINTEXT://0.0.0.0:{self._port},{_CONTROLLER}",
            "controller.quorum.voters": "1@localhost:9093",
        }


class OpenSearchContainer(_Contained, OpenSearch):
    """`OpenSearch` in a container."""

    def _image(self) -> Any:
        from testcontainers.core.container import DockerContainer

        settings = {
            "discovery.type": "single-node",
            "http.port": str(self._port),
            "DISABLE_SECURITY_PLUGIN": "true",
            "DISABLE_INSTALL_DEMO_CONFIG": "true",
            "OPENSEARCH_JAVA_OPTS": f"-Xms{self._heap} -Xmx{self._heap}",
        }
        container = DockerContainer(OPENSEARCH_IMAGE)
        for name, value in settings.items():
            container.with_env(name, value)
        return container

    def _is_ours(self, node: str) -> bool:
        return bool(node)  # Docker itself refuses a port that is taken


class RedisContainer(_Contained, Redis):
    """`Redis` in a container."""

    def _is_ours(self, heard: str) -> bool:
        return self.process in heard  # Docker itself refuses a port that is taken

    def _image(self) -> Any:
        from testcontainers.core.container import DockerContainer

        return DockerContainer(REDIS_IMAGE).with_command(f"redis-server --port {self._port} --save '' --appendonly no")


class MemcachedContainer(_Contained, Memcached):
    """`Memcached` in a container."""

    def _is_ours(self, heard: str) -> bool:
        return self.process in heard  # Docker itself refuses a port that is taken

    def _image(self) -> Any:
        from testcontainers.core.container import DockerContainer

        return DockerContainer(MEMCACHED_IMAGE).with_command(f"memcached -p {self._port} -m 64")


def _start(name: str, container: Any, port: int) -> ContainerRun:
    import docker

    container.ports[str(port)] = ("127.0.0.1", port)  # `with_bind_ports` would open it to other machines
    try:
        container.start()
    except docker.errors.DockerException as error:
        raise LocalServerError(f"Docker can't start {name}: {error}") from error
    return ContainerRun(name, container.get_wrapped_container(), log_start=0)


def _remove(container: Any) -> None:
    if container is not None:
        container.stop(force=True)


@functools.cache
def _network() -> Any:
    """Return the only network of this process's containers, on which they find each other by alias."""
    from testcontainers.core.network import Network

    return Network().create()


def _image_variable(key: str) -> str:
    """Return the environment variable that the image turns into this broker property."""
    return "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper()
