"""Tests of the pure core: rows, schema, transactions and events, without a server."""
