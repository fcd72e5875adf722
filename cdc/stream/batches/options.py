"""What a pipeline is given from outside: the operator's decisions about events, the server, and room on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from cdc.events.columns import ColumnRule, ColumnRules
from cdc.events.routes import Routes, RoutingRule
from cdc.events.topics import NOTIFICATION, SpaceFilter, TopicNames
from cdc.formats.options import JSON_FORMATS, FormatOptions
from cdc.schema.forms import SPACE
from cdc.stream.moves.records import Shards
from cdc.stream.transactions.transaction import Spool

NewNames = Callable[[str, str, Sequence[str]], TopicNames]
"""Factory of the names of the places that events go to; the parameters are as those of TopicNames."""
TOPICS: Final[NewNames] = TopicNames


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The operator's decisions about events."""

    prefix: str
    """Prefix of the spaces' topics."""
    include: list[str]
    exclude: list[str]
    tombstones: bool = True
    transaction_topic: Literal["none", "multi", "all"] = "multi"
    on_error: Literal["fail", "dlq"] = "fail"
    on_image_error: Literal["fail", "dlq"] = "fail"
    formats: FormatOptions = JSON_FORMATS
    column_rules: Sequence[ColumnRule] = ()
    control_prefix: str = ""
    """Prefix of the control topics, if it is another one."""
    shards: Sequence[str] = ()
    """Names of the fleet's replica sets, if they write the same topics."""
    topic_template: str = SPACE
    """Name behind the prefix of the topics of spaces to which no rule with a topic applies."""
    routing_rules: Sequence[RoutingRule] = ()
    headers: Sequence[str] = ()
    """Names of the headers of the spaces' messages."""
    salt: bytes = field(default=b"", repr=False)
    """Secret with which values of columns are hashed."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Size, in bytes, from which a source transaction waits on disk for its end."""
    has_source_images: bool = False
    """Whether the log's own rows have the images."""
    snapshot_spaces: Sequence[str] = (".*",)
    """Patterns of the spaces whose rows the first snapshot publishes."""
    snapshot_filters: Sequence[tuple[str, str]] = ()
    """Patterns of spaces of whose rows the first snapshot publishes only some, each with the expression that chooses them."""
    optional_topics: frozenset[str] = frozenset()
    """Those of the control topics that not every daemon has which this one has."""
    batch_bytes_max: int = 1024 * 1024
    """Target size of a batch, in bytes. The event that exceeds it ends the batch, within a transaction if need be."""

    @property
    def has_notifications(self) -> bool:
        """Whether notifications of snapshots and requests are written."""
        return NOTIFICATION in self.optional_topics

    def space_filter(self) -> SpaceFilter:
        """Return the filter that selects the published spaces, by id and name."""
        return SpaceFilter(self.include, self.exclude)

    def columns(self) -> ColumnRules:
        """Return the rules that say what of the rows' columns is published."""
        return ColumnRules(self.column_rules, self.salt)

    def routes(self) -> Routes:
        """Return the rules that say where the spaces' events go."""
        # Equal keys of such spaces, of vshard's `_bucket` above all, aren't the same row in two shards.
        own_topic = f"{self.formats.shard}.{SPACE}" if self.shards else ""
        return Routes(self.topic_template, self.routing_rules, own_topic)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parameters of a pipeline besides its start position.

    `server_uuid` and `version` are the source server's; the version determines what its rows contain. `new_spool` returns a new
    place on disk for a transaction that is too large for memory. `new_names` returns the names of topics for a prefix.
    """

    options: PipelineOptions
    server_uuid: UUID
    version: tuple[int, ...]
    new_spool: Callable[[], Spool]
    new_names: NewNames = TOPICS
    shards: Shards | None = None
    """What the daemons of the shards that write the same topics have recorded of their buckets, if moves of buckets are hidden
    there."""
