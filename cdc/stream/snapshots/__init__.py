"""Rows that are published whole: the first snapshot, and those that are shown again, by request or under another key."""
