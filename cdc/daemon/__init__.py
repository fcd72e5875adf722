"""The running daemon: the supervisor, the follower of a connection, the pipeline's runner, the monitor of all members."""
