"""A cluster of librdkafka's own, which refuses on demand: brokers in this process that speak Kafka's protocol.

It is in every librdkafka, for its own tests (`rdkafka_mock.h`); confluent_kafka shows nothing of it, so its functions are called
by their names. As Kafka it takes whatever number a producer's first batch in a partition has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaError, cimpl

_PRODUCER = 0
PRODUCE = 0
"""The request of Kafka's protocol by which messages are written."""


class MockCluster:
    """One broker."""

    def __init__(self, library: ctypes.CDLL, cluster: ctypes.c_void_p) -> None:
        self._library = library
        self._cluster = cluster
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        self.bootstrap_servers: str = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def create(self, topic: str, partition_count: int) -> None:
        """Make a topic."""
        error = self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partition_count, 1)
        assert error == KafkaError.NO_ERROR

    def refuse(self, request: int, errors: Sequence[int]) -> None:
        """Answer the next requests of this kind with these errors, one each."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), array
        )


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    """Start one; it ends with the block."""
    library = ctypes.CDLL(cimpl.__file__)
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    reason = ctypes.create_string_buffer(512)
    client = ctypes.c_void_p(
        library.rd_kafka_new(_PRODUCER, ctypes.c_void_p(library.rd_kafka_conf_new()), reason, ctypes.c_size_t(len(reason)))
    )
    assert client.value, reason.value.decode()
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    try:
        yield MockCluster(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)
