"""tarantool-cdc: a Tarantool replica that publishes every row change to Kafka, exactly once."""

__version__ = "0.1.0"
