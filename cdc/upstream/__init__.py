"""Decisions over ballots, pure: how a connection starts, which member is followed, when to go to another, how long to wait."""
