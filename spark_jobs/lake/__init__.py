"""Append first, merge rarely: the table of all events, and the tables that are made from it."""
