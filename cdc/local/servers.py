"""Starts Tarantool, Kafka and the targets of feeds in the way that this machine allows: as containers or as processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Self

from cdc.errors import ConfigurationError
from cdc.local.caches import Memcached, Redis
from cdc.local.containers import (
    KafkaContainer,
    MemcachedContainer,
    OpenSearchContainer,
    RedisContainer,
    TarantoolContainer,
    docker_engine_answers,
)
from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.kafka import Kafka
from cdc.local.kafka_cluster import KafkaCluster
from cdc.local.kafka_secured import SecuredKafka
from cdc.local.opensearch import OpenSearch
from cdc.local.options import TarantoolOptions
from cdc.local.registry import Registry
from cdc.local.rest_catalog import RestCatalog
from cdc.local.s3 import S3
from cdc.local.tarantool import Tarantool

KIND_VARIABLE = "TARANTOOL_CDC_SERVERS"
"""The environment variable that chooses the kind: `process` or `container`."""


class ServerKind(Enum):
    """How servers run on this machine."""

    PROCESS = "process"
    CONTAINER = "container"


def server_kind() -> ServerKind:
    """Return the kind in `TARANTOOL_CDC_SERVERS`, else containers if a Docker engine answers, else processes.

    Raises `ConfigurationError` if the variable has another value.
    """
    wanted = os.environ.get(KIND_VARIABLE)
    if not wanted:
        return ServerKind.CONTAINER if docker_engine_answers() else ServerKind.PROCESS
    try:
        return ServerKind(wanted)
    except ValueError as error:
        raise ConfigurationError(f"{KIND_VARIABLE}={wanted} isn't a kind of server.", "Use process or container.") from error


class LocalServers:
    """Servers with their files under one directory. Leaving the context stops all of them, the latest first."""

    def __init__(self, directory: Path, kind: ServerKind) -> None:
        """`directory` is created when needed, and never removed."""
        self.directory = directory
        self.kind = kind
        self._started = ExitStack()

    def tarantool(
        self, name: str = "tarantool", options: TarantoolOptions | None = None, *, port: int | None = None
    ) -> TarantoolServer:
        """Return an instance in `directory/name`, which isn't started yet, and is stopped by `close`."""
        make = TarantoolContainer if self.kind is ServerKind.CONTAINER else Tarantool
        server = make(self.directory / name, options, port=port, name=name)
        self._started.callback(server.close)
        return server

    def start_tarantool(
        self, name: str = "tarantool", options: TarantoolOptions | None = None, *, port: int | None = None
    ) -> TarantoolServer:
        """Return a running instance in `directory/name`. Raises `LocalServerError` if it doesn't start."""
        server = self.tarantool(name, options, port=port)
        server.start()
        return server

    def start_kafka(
        self,
        name: str = "kafka",
        properties: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        heap: str = "1g",
        is_lasting: bool = False,
    ) -> KafkaServer:
        """Return a running cluster in `directory/name`; options as of `Kafka`. Raises `LocalServerError` if it doesn't start."""
        make = KafkaContainer if self.kind is ServerKind.CONTAINER else Kafka
        server = make(self.directory / name, properties, port=port, heap=heap, is_lasting=is_lasting, name=name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_secured_kafka(self, users: Mapping[str, str], name: str = "secured-kafka") -> SecuredKafka:
        """Return a running broker where these users log in; always a process. Raises `LocalServerError` if it doesn't start."""
        server = SecuredKafka(self.directory / name, users, name=name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_kafka_cluster(self, properties: Mapping[str, str] | None = None, name: str = "kafka-cluster") -> KafkaCluster:
        """Return three running brokers, always as processes. Raises `LocalServerError` if they don't start."""
        cluster = KafkaCluster(self.directory / name, properties, name=name)
        self._started.callback(cluster.close)
        cluster.start()
        return cluster

    def start_opensearch(self, name: str = "opensearch", *, heap: str = "256m", is_lasting: bool = False) -> OpenSearch:
        """Return a running node, with the options of `OpenSearch`. Raises `LocalServerError` if it doesn't start."""
        make = OpenSearchContainer if self.kind is ServerKind.CONTAINER else OpenSearch
        server = make(self.directory / name, heap=heap, is_lasting=is_lasting, name=name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_registry(self, name: str = "registry", *, keeps_data: bool = False) -> Registry:
        """Return a running registry of schemas, always as a process. Raises `LocalServerError` if it doesn't start."""
        server = Registry(self.directory / name, keeps_data=keeps_data, name=name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_s3(self, name: str = "s3") -> S3:
        """Return a running server of the S3 protocol, always as a process. Raises `LocalServerError` if it doesn't start."""
        server = S3(self.directory / name, name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_rest_catalog(self, name: str = "rest-catalog") -> RestCatalog:
        """Return a running REST catalog of Iceberg, always as a process. Raises `LocalServerError` if it doesn't start."""
        server = RestCatalog(self.directory / name, name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_redis(self, name: str = "redis") -> Redis:
        """Return a running Redis. Raises `LocalServerError` if it doesn't start."""
        server = (RedisContainer if self.kind is ServerKind.CONTAINER else Redis)(self.directory / name, name=name)
        self._started.callback(server.close)
        server.start()
        return server

    def start_memcached(self, name: str = "memcached") -> Memcached:
        """Return a running memcached. Raises `LocalServerError` if it doesn't start."""
        server = (MemcachedContainer if self.kind is ServerKind.CONTAINER else Memcached)(self.directory / name, name=name)
        self._started.callback(server.close)
        server.start()
        return server

    def close(self) -> None:
        """Stop all servers."""
        self._started.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local_servers(directory: Path, kind: ServerKind | None = None) -> LocalServers:
    """Return servers of this kind, or of the kind that suits the machine, under `directory`.

    Raises `ConfigurationError` as `server_kind`.
    """
    return LocalServers(directory, kind or server_kind())
