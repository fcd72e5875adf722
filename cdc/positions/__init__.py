"""Progress in the replica set's log: the vector clock, and the position that a checkpoint records."""
