"""The checkpoint topic: where the daemon finds out, at start, what it had done.

`<prefix>.checkpoint` is compacted and has one partition. The record under `{"name": …}` is the position; beside it stands a
record per space with its system rows, from which the schema at that position is rebuilt, and a tombstone for a space that is
gone. All records of one commit are written in one Kafka transaction, in both delivery modes, so what a read_committed reader
folds from the topic is one consistent moment.

`writer` names the process that wrote the position: it tells a producer whose transaction timed out from one that was fenced
by a second daemon of the same name.

Under the empty name stand two kinds of records that are about a daemon and not its position, so that an older version of this
program passes over them:

    {"name": "", "owner": NAME}   the daemon NAME publishes under this prefix, and nobody else may. Written in a Kafka transaction
    {"name": "", "alive": NAME}   the daemon NAME is at work. Written every few seconds, outside of its transactions
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdc.errors import ConfigurationError
from cdc.events.json_values import encode
from cdc.positions.position import Position
from cdc.protocol.extensions import pack, unpack
from cdc.schema.forms import SpaceForm, StoredSpace
from cdc.schema.tracker import published_forms

NUMBERS_KEY: Final = encode({"name": None, "numbers": "by space"})
"""A name that no daemon has keeps this record out of what a checkpoint says."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that writes positions, and whether it keeps a state store beside them."""

    id: str
    has_store: bool


@dataclass(frozen=True, slots=True)
class Sign:
    """A daemon's sign of life: which process gave it, where and when, and whether it was the last one, before a clean end."""

    writer: str
    host: str
    process_id: int
    ts_ms: int
    is_last: bool = False


@dataclass(slots=True)
class Checkpoint:
    """What was stored: the position (None if there never was one), the schema at it, and who wrote it.

    `has_store`: whether the writer kept a state store; None if it was too old to say. Of all daemons on the topic: `owners`
    have claimed the prefix, in order, `published` have published something, each with when it last wrote, and `signs` are
    those of life.
    """

    position: Position | None = None
    spaces: dict[int, StoredSpace] = field(default_factory=dict)
    writer: str | None = None
    has_store: bool | None = None
    owners: dict[str, int] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    signs: dict[str, Sign] = field(default_factory=dict)

    def published_forms(self) -> list[SpaceForm]:
        """The spaces that are published at the position, as they look there."""
        return published_forms(self.spaces.values())


def position_record(name: str, position: Position, writer: Writer, now_ms: int) -> tuple[bytes, bytes]:
    """Key and value of the position."""
    who = {"writer": writer.id, "has_store": writer.has_store, "ts_ms": now_ms}
    return encode({"name": name}), encode({"name": name, **position.to_json(), **who})


def owner_record(name: str, now_ms: int | None) -> tuple[bytes, bytes | None]:
    """Key and value of a claim to the prefix; a tombstone if it is given up."""
    value = None if now_ms is None else encode({"owner": name, "since_ts_ms": now_ms})
    return encode({"name": "", "owner": name}), value


def sign_record(name: str, sign: Sign) -> tuple[bytes, bytes]:
    """Key and value of a sign of life."""
    value = {
        "alive": name,
        "writer": sign.writer,
        "host": sign.host,
        "process_id": sign.process_id,
        "ts_ms": sign.ts_ms,
        "is_last": sign.is_last,
    }
    return encode({"name": "", "alive": name}), encode(value)


def space_record(name: str, space_id: int, space: StoredSpace | None) -> tuple[bytes, bytes | None]:
    """Key and value of one space's system rows; a tombstone if it is gone."""
    key = encode({"name": name, "space_id": space_id})
    if space is None:
        return key, None
    rows = pack([space.space_row, space.index_rows])
    value = {"space_id": space_id, "schema_version": space.schema_version, "rows": base64.b64encode(rows).decode()}
    return key, encode(value)


def numbers_record(numbers: Mapping[int, int]) -> tuple[bytes, bytes]:
    """Key and value, in the state store alone, of the numbers that spaces' keys begin with there."""
    return NUMBERS_KEY, encode({str(space_id): number for space_id, number in numbers.items()})


def fold(name: str, key: bytes, value: bytes | None, checkpoint: Checkpoint) -> None:
    """Take one record of the topic into `checkpoint`; of other names, only that they are there.

    Raises ConfigurationError for what isn't a checkpoint record.
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
            return
        if space_id is None:
            checkpoint.position = Position.from_json(content) if content is not None else None
            checkpoint.writer = content["writer"] if content is not None else None
            checkpoint.has_store = content.get("has_store") if content is not None else None
        elif value is None:
            checkpoint.spaces.pop(space_id, None)
        else:
            content = json.loads(value)
            packed = base64.b64decode(content["rows"])
            space_row, index_rows = unpack(packed)
            checkpoint.spaces[space_id] = StoredSpace(space_id, space_row, index_rows, content["schema_version"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the checkpoint topic holds a record that isn't a checkpoint's: {key[:200]!r}",
            "kafka.topic_prefix must not be shared with another program's topics.",
        ) from error


def _fold_published(name: str, content: dict[str, Any] | None, checkpoint: Checkpoint) -> None:
    # A daemon that has taken its name and come no further has published nothing.
    if content and content.get("snapshot"):
        checkpoint.published[name] = content["ts_ms"]
    else:
        checkpoint.published.pop(name, None)


def _fold_daemon(identity: dict[str, Any], value: bytes | None, checkpoint: Checkpoint) -> None:
    owner, alive = identity.get("owner"), identity.get("alive")
    if owner is not None:
        # Who claims anew goes to the end, as its record does.
        checkpoint.owners.pop(owner, None)
        if value is not None:
            checkpoint.owners[owner] = json.loads(value)["since_ts_ms"]
    elif alive is not None and value is not None:
        content = json.loads(value)
        checkpoint.signs[alive] = Sign(
            content["writer"], content["host"], content["process_id"], content["ts_ms"], content["is_last"]
        )
