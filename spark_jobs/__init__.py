"""Spark jobs over the topics of tarantool-cdc. They share nothing with the daemon but its messages (docs/events.md)."""
