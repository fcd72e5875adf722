"""Pure decisions over members' ballots: how a connection starts, which member to follow, when to leave it, how long to wait."""
