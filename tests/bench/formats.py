"""Cost of each format, from the bytes of a master's rows to finished messages: `python -m tests.bench.formats [ROWS]`.

No server runs. A row is (unsigned, string of 16 characters, string, unsigned, double); each is a REPLACE of one of 1,000 keys.
"""

from __future__ import annotations

import sys
import time
from typing import Final, NamedTuple

from cdc.formats.options import FormatOptions, Registration
from cdc.images.overlay import Images
from cdc.protocol.compiled_frames import frame_decoder
from cdc.protocol.constants import Key, Type
from tests.fakes import wire
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.tuples import MemoryTuples
from tests.stream.batches.test_compiled_rows import BEGIN, USERS, spaces

_FIELDS: Final = [("id", "unsigned"), ("name", "string"), ("city", "string"), ("age", "unsigned"), ("ratio", "double")]
_FEED_BYTES: Final = 1 << 18
_ROUNDS: Final = 3


def an_id(_: Registration) -> int:
    """What a registry gives."""
    return 7


FORMATS: Final = {
    "json": FormatOptions(),
    "avro": FormatOptions("avro", "avro", schema_ids=an_id),
    "json_schema": FormatOptions("json_schema", "json_schema"),
    "protobuf": FormatOptions("protobuf", "protobuf", schema_ids=an_id),
    "json_schema_registry": FormatOptions("json_schema_registry", "json_schema_registry", schema_ids=an_id),
    "json, lean source": FormatOptions(source="lean"),
    "avro, lean source": FormatOptions("avro", "avro", source="lean", schema_ids=an_id),
    "json, flat": FormatOptions(envelope="flat"),
    "avro, flat": FormatOptions("avro", "avro", envelope="flat", schema_ids=an_id),
}


class Cost(NamedTuple):
    """CPU seconds, and bytes of values, per event, and whether the compiled path made them."""

    seconds: float
    byte_count: float
    is_compiled: bool


def rows_of(count: int) -> bytes:
    """The frames of so many rows."""

    def frame(number: int) -> bytes:
        header = {Key.REQUEST_TYPE: Type.REPLACE, Key.REPLICA_ID: 1, Key.LSN: 11 + number, Key.TIMESTAMP: 1_732_180_000.5}
        row = [number % 1000, f"{number:016x}", "Oslo", number % 90, number / 8]
        return wire.frame(header, {Key.SPACE_ID: USERS, Key.TUPLE: row})

    return b"".join(map(frame, range(count)))


def cost(data: bytes, formats: FormatOptions, *, has_images: bool) -> Cost:
    """Measure one run."""
    images = Images(MemoryTuples(), version=(2, 11)) if has_images else None
    target = pipeline(BEGIN, spaces(_FIELDS, [(0, "unsigned")]), version=(2, 11), images=images, formats=formats)
    decoder, begun = frame_decoder(), time.process_time()
    byte_count = event_count = native_count = 0
    for start in range(0, len(data), _FEED_BYTES):
        for batch in target.feed(decoder.feed(data[start : start + _FEED_BYTES]), NOW_US):
            byte_count += batch.byte_count
            event_count += batch.event_count
            native_count += batch.native_row_count
    seconds = time.process_time() - begun
    return Cost(seconds / event_count, byte_count / event_count, native_count > event_count / 2)


def main() -> None:
    """Measure all formats, and print a table."""
    data = rows_of(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
    print("| format | images | path | bytes per event | µs | rows/s |\n|---|---|---|---|---|---|")
    for has_images in (False, True):
        for name, formats in FORMATS.items():
            if formats.envelope == "flat" and not has_images:
                continue
            best = min(cost(data, formats, has_images=has_images) for _ in range(_ROUNDS))
            path = "compiled" if best.is_compiled else "Python"
            shown = f"{best.byte_count:.0f} | {best.seconds * 1e6:.2f} | {1 / best.seconds:,.0f}"
            print(f"| {name} | {'yes' if has_images else 'no'} | {path} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
