"""Append first, merge rarely: all events in one table, and what is made of it."""
