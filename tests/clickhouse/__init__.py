"""Tests of the statements of docs/clickhouse.md."""
