"""Readers of what the daemon writes that know nothing of the daemon."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from cdc.formats.options import Format, FormatOptions, Registration
from cdc.stream.batch import Broadcast
from tests.fakes.master import Master
from tests.fakes.replica import Replica

Event = tuple[Any, Any]
"""Key and value, decoded."""


class Ids:
    """A registry that gives each schema the next number."""

    def __init__(self) -> None:
        self.schemas: list[Registration] = []

    def __call__(self, wanted: Registration) -> int:
        if wanted not in self.schemas:
            self.schemas.append(wanted)
        return self.schemas.index(wanted) + 1

    def read(self, data: bytes | None) -> Any:
        """What is written in Confluent's form, read by fastavro; nothing may be left over."""
        if data is None:
            return None
        assert data[0] == 0
        schema = fastavro.parse_schema(json.loads(self.schemas[int.from_bytes(data[1:5], "big") - 1].text))
        rest = io.BytesIO(data[5:])
        found = fastavro.schemaless_reader(rest, schema, None)
        assert not rest.read()
        return found


def published(master: Master, work: Any, ids: Ids, *, images: bool, key: Format, value: Format, **options: Any) -> list[Any]:
    """What a daemon in these formats publishes of the spaces' topics, while `work` changes the master."""
    formats = FormatOptions(key, value, schema_ids=ids, **options)
    replica = Replica(master, images=images, formats=formats, on_error="dlq")
    replica.connect()
    work(master)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    return [
        (one.topic, None, one.value) if isinstance(one, Broadcast) else one
        for one in replica.news()
        if (one.topic if isinstance(one, Broadcast) else one[0])
        not in {f"shop.{name}" for name in ("schema", "snapshot", "transaction", "checkpoint")}
    ]
