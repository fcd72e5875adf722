"""Rows to transactions to batches, pure: what is confirmed, in which order, and what has become of it."""
