"""Buckets that move between the shards of a fleet, in topics that all shards write."""
