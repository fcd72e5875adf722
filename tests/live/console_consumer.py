"""Stands for `kafka-console-consumer.sh`, which isn't among the jars that run a broker: the same options and output."""

from __future__ import annotations

import argparse
import uuid

from confluent_kafka import Consumer


def main() -> None:
    """Print the values of a topic, a line each, until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--from-beginning", action="store_true")
    parser.add_argument("--isolation-level", choices=("read_committed", "read_uncommitted"), default="read_uncommitted")
    parser.add_argument("--formatter-property", action="append", default=[], choices=("print.key=true",))
    options = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap_server,
            "group.id": f"console-consumer-{uuid.uuid4()}",
            "auto.offset.reset": "earliest" if options.from_beginning else "latest",
            "isolation.level": options.isolation_level,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([options.topic])
    while True:
        message = consumer.poll(1)
        if message is None:
            continue
        if error := message.error():
            raise SystemExit(str(error))
        shown = [message.key(), message.value()] if options.formatter_property else [message.value()]
        print("\t".join("null" if part is None else part.decode() for part in shown), flush=True)


if __name__ == "__main__":
    main()
