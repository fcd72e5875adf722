"""Who runs: the supervisor, one connection's follower, the pipeline's runner, the monitor of all members."""
