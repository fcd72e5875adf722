"""Transactions, from their rows until they are certain."""
