"""The checkpoint topic, from which a starting daemon learns what it had published.

`<prefix>.checkpoint` is compacted and has one partition. The record with the key `{"name": …}` holds the position. Further
records hold each space's system rows, from which the daemon rebuilds the schema at that position; a tombstone stands for a space
that is gone. All records of one commit are written in one Kafka transaction, in both delivery modes. A read_committed reader that
folds the topic therefore gets the state of one moment.

`writer` names the process that wrote the position. It distinguishes a producer whose transaction timed out from a producer that
was fenced by a second daemon of the same name.

Three kinds of records have an empty name. They concern a daemon or a topic rather than a position, so an older version of this
program skips them:

    {"name": "", "owner": NAME}   only the daemon NAME may publish under this prefix. Written in a Kafka transaction
    {"name": "", "alive": NAME}   the daemon NAME is running. Written every few seconds, outside of its transactions
    {"name": "", "lost_topic": TOPIC}   a topic was deleted (cdc.stream.commits.losses). Its tombstone: consumers can do without
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.errors import ConfigurationError
from cdc.events.json_values import encode
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.protocol.extensions import pack, unpack
from cdc.schema.forms import PLAIN_ROUTING, Routing, SpaceForm, StoredSpace
from cdc.schema.tracker import published_forms
from cdc.stream.commits.losses import LostTopic

NUMBERS_KEY: Final = encode({"name": None, "numbers": "by space"})
"""Key of `numbers_record`. No daemon has the name null, so the record is never read as part of a checkpoint."""


@dataclass(slots=True)
class Writer:
    """A process that writes positions, whether it keeps a state store beside them, and its transactional id in Kafka."""

    id: str
    has_store: bool
    transactional_id: str | None = None
    awaits_former: bool = False
    """Whether the process is still waiting for the end of the one whose name it has taken over. Changes once that is over."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A daemon's sign of life: its process, host and time, and whether it was the last one, before a clean end."""

    writer: str
    host: str
    process_id: int
    ts_ms: int
    is_last: bool = False


@dataclass(slots=True)
class Checkpoint:
    """Content of the checkpoint topic: the position (None if there never was one), the schema at it, and its writer.

    `has_store`: whether the writer kept a state store; `transactional_id`: its id in Kafka. They are None if the writer was too
    old to record that. `awaits_former`: whether the writer was still waiting for the end of the process whose name it had taken
    over. The other fields cover all daemons on the topic, by name: `owners` have claimed the prefix, in this order, each with the
    time of its claim; `published` have published events, each with the time of its last write; `signs` are their signs of life.
    Times are in milliseconds since the epoch. `others` are the highest numbers that daemons of other names have given, which have
    owned the prefix before.
    """

    position: Position | None = None
    spaces: dict[int, StoredSpace] = field(default_factory=dict)
    writer: str | None = None
    has_store: bool | None = None
    transactional_id: str | None = None
    awaits_former: bool = False
    owners: dict[str, int] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    signs: dict[str, Sign] = field(default_factory=dict)
    others: Numbers = field(default_factory=Numbers)
    losses: dict[str, LostTopic] = field(default_factory=dict)
    """Topics of the prefix that were deleted, and whose rows consumers may lack."""

    def restore_forms(self, store: Checkpoint) -> list[int]:
        """Add the forms that the topic has lost and the state store has at the same position. Return the ids of their spaces.

        Retention by time or by size deletes the forms of spaces that haven't changed for long, and keeps the position, which is
        written all the time. A form that is missing doesn't mean that its space is gone: that is recorded by a tombstone, and
        the store has no such space at this position either.
        """
        here, there = self.position, store.position
        if here is None or there is None or (here.vclock, here.schema_version) != (there.vclock, there.schema_version):
            return []
        lost = {space_id: space for space_id, space in store.spaces.items() if space_id not in self.spaces}
        self.spaces.update(lost)
        return list(lost)

    def published_forms(self) -> list[SpaceForm]:
        """Return the forms, at the position, of the spaces that are published there."""
        return published_forms(list(self.spaces.values()))


def position_record(name: str, position: Position, writer: Writer, now_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of the position's record."""
    who: dict[str, Any] = {"writer": writer.id, "has_store": writer.has_store, "ts_ms": now_ms}
    if writer.transactional_id is not None:
        who["transactional_id"] = writer.transactional_id
    if writer.awaits_former:
        who["awaits_former"] = True
    return encode({"name": name}), encode({"name": name, **position.to_json(), **who})


def owner_record(name: str, now_ms: int | None) -> tuple[bytes, bytes | None]:
    """Return key and value of a claim to the prefix. Without `now_ms`, the value is a tombstone, which gives up the claim."""
    value = None if now_ms is None else encode({"owner": name, "since_ts_ms": now_ms})
    return encode({"name": "", "owner": name}), value


def sign_record(name: str, sign: Sign) -> tuple[bytes, bytes]:
    """Return key and value of a sign of life."""
    value = {
        "alive": name,
        "writer": sign.writer,
        "host": sign.host,
        "process_id": sign.process_id,
        "ts_ms": sign.ts_ms,
        "is_last": sign.is_last,
    }
    return encode({"name": "", "alive": name}), encode(value)


def loss_record(topic: str, loss: LostTopic | None) -> tuple[bytes, bytes | None]:
    """Return key and value of the record of a deleted topic; the value is a tombstone if consumers can do without it."""
    return encode({"name": "", "lost_topic": topic}), encode(loss.to_json()) if loss is not None else None


def space_record(name: str, space_id: int, space: StoredSpace | None) -> tuple[bytes, bytes | None]:
    """Return key and value of the record with one space's system rows; the value is a tombstone if the space is gone."""
    key = encode({"name": name, "space_id": space_id})
    if space is None:
        return key, None
    rows = pack([space.space_row, space.index_rows])
    value = {"space_id": space_id, "schema_version": space.schema_version, "rows": base64.b64encode(rows).decode()}
    if space.columns:
        value["columns"] = space.columns
    if space.routing != PLAIN_ROUTING:
        value["routing"] = space.routing.to_json()
    return key, encode(value)


def numbers_record(numbers: Mapping[int, int]) -> tuple[bytes, bytes]:
    """Return key and value of the record, kept only in the state store, of the numbers that prefix each space's keys there."""
    return NUMBERS_KEY, encode({str(space_id): number for space_id, number in numbers.items()})


def fold(name: str, key: bytes, value: bytes | None, checkpoint: Checkpoint) -> None:
    """Fold one record of the topic into `checkpoint`. Of daemons with other names, only their existence and numbers are recorded.

    Raises ConfigurationError for a record that isn't a checkpoint record.
    """
    try:
        identity: dict[str, Any] = json.loads(key)
        if identity["name"] == "":
            _fold_daemon(identity, value, checkpoint)
            return
        space_id = identity.get("space_id")
        if space_id is None:
            content = json.loads(value) if value is not None else None
            _fold_published(identity["name"], content, checkpoint)
        if identity["name"] != name:
            if space_id is None and content is not None:
                checkpoint.others |= _numbers_of(content)
            return
        if space_id is None:
            checkpoint.position = Position.from_json(content) if content is not None else None
            checkpoint.writer = content["writer"] if content is not None else None
            checkpoint.has_store = content.get("has_store") if content is not None else None
            checkpoint.transactional_id = content.get("transactional_id") if content is not None else None
            checkpoint.awaits_former = content is not None and content.get("awaits_former", False)
        elif value is None:
            checkpoint.spaces.pop(space_id, None)
        else:
            content = json.loads(value)
            packed = base64.b64decode(content["rows"])
            space_row, index_rows = unpack(packed)
            routing = Routing.from_json(content.get("routing", {}))
            checkpoint.spaces[space_id] = StoredSpace(
                space_id, space_row, index_rows, content["schema_version"], content.get("columns", ""), routing
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the checkpoint topic holds a record that isn't a checkpoint's: {key[:200]!r}",
            "kafka.topic_prefix must not be shared with another program's topics.",
        ) from error


def _numbers_of(content: Mapping[str, Any]) -> Numbers:
    """Return the numbers of another daemon's position, whose version may be a newer one than this program's."""
    snapshot = content.get("snapshot") or {}
    return Numbers(content.get("seq", 0), snapshot.get("snapshot_id", 0), content.get("schema_version", 0))


def _fold_published(name: str, content: dict[str, Any] | None, checkpoint: Checkpoint) -> None:
    # A daemon that has only registered its name, without a snapshot yet, has published nothing.
    if content and content.get("snapshot"):
        checkpoint.published[name] = content["ts_ms"]
    else:
        checkpoint.published.pop(name, None)


def _fold_daemon(identity: dict[str, Any], value: bytes | None, checkpoint: Checkpoint) -> None:
    owner, alive, lost = identity.get("owner"), identity.get("alive"), identity.get("lost_topic")
    if owner is not None:
        # A repeated claim moves to the end, as its record does.
        checkpoint.owners.pop(owner, None)
        if value is not None:
            checkpoint.owners[owner] = json.loads(value)["since_ts_ms"]
    elif alive is not None and value is not None:
        content = json.loads(value)
        checkpoint.signs[alive] = Sign(
            content["writer"], content["host"], content["process_id"], content["ts_ms"], content["is_last"]
        )
    elif lost is not None:
        checkpoint.losses.pop(lost, None)
        if value is not None:
            checkpoint.losses[lost] = LostTopic.from_json(json.loads(value))
