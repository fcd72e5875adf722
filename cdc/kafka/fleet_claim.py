"""The claim of a fleet to its prefix, which any of its daemons makes.

It is in `<prefix>.checkpoint`, where a daemon of this prefix would have its own.

So no daemon without a fleet, and no other fleet, begins to write the same topics; and a fleet notices that its `fleet.topics` was
changed: its daemons would go on behind their checkpoints in other topics, which lack all earlier rows.
"""

from __future__ import annotations

from cdc.config import KafkaSection
from cdc.config.shard import Shard
from cdc.errors import ConfigurationError, ConnectionLostError
from cdc.kafka import checkpoint_topic
from cdc.kafka.clients import KafkaClients
from cdc.kafka.delivery import Delivery, Record, now_ms
from cdc.kafka.names import claim_topic
from cdc.kafka.topic_admin import list_topics
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch
from cdc.stream.commits import checkpoint, ownership
from cdc.stream.commits.checkpoint import Checkpoint


def check(config: KafkaSection, clients: KafkaClients) -> None:
    """Raise PrefixTakenError if the prefix of a shard's fleet belongs to somebody else. Raises ConnectionLostError."""
    shard = config.shard
    if shard is not None and claim_topic(config) in list_topics(clients.admin(), config.bootstrap_servers):
        ownership.check_fleet(_read(config, shard, clients), shard.fleet_prefix, owner_of(shard))


def owner_of(shard: Shard) -> str:
    """Return the owner of the prefix of a shard's fleet."""
    return ownership.fleet_owner(shard.fleet, shares_topics=shard.shares_topics)


class FleetClaim:
    """The claim of one shard's fleet, made by the shard's publisher. The topic exists."""

    def __init__(self, config: KafkaSection, shard: Shard, clients: KafkaClients) -> None:
        self._config = config
        self._shard = shard
        self._clients = clients
        self._owner = owner_of(shard)

    def begin(self, delivery: Delivery, *, takes: bool) -> bool:
        """Make the claim, unless it is there, in the transaction that is committed next; return whether it was made.

        Raises PrefixTakenError if somebody else has claimed the prefix, unless this daemon `takes` it.
        """
        stored = _read(self._config, self._shard, self._clients)
        if not takes:
            ownership.check_fleet(stored, self._shard.fleet_prefix, self._owner)
        claims = ownership.claims(stored, self._owner, now_ms(), takes=takes)
        if claims:
            delivery.produce(self._batch(claims))
        return bool(claims)

    def confirm(self, delivery: Delivery) -> None:
        """Withdraw the claim, after its commit, and raise PrefixTakenError, if another claim came first."""
        stored = _read(self._config, self._shard, self._clients)
        if self._owner not in stored.owners:
            raise ConnectionLostError(f"Kafka doesn't show the owner of {self._shard.fleet_prefix} yet")
        try:
            ownership.check_fleet(stored, self._shard.fleet_prefix, self._owner)
        except ConfigurationError:
            delivery.produce(self._batch([checkpoint.owner_record(self._owner, None)]))
            delivery.commit([])
            raise

    def _batch(self, records: list[Record]) -> Batch:
        topic = claim_topic(self._config)
        assert topic is not None
        return Batch([(topic, *record) for record in records], 0, 0, 0, Position(), True, {}, [], 0.0)


def _read(config: KafkaSection, shard: Shard, clients: KafkaClients) -> Checkpoint:
    topic = claim_topic(config)
    assert topic is not None
    return checkpoint_topic.read(clients.consumer("read_committed"), topic, owner_of(shard), config.bootstrap_servers)
