"""Decisions over ballots, pure: where a connection starts, which member is followed, when to go to another."""
