"""Real servers on this machine, for `tarantool-cdc demo` and the tests: Tarantool, Kafka, and what Spark needs.

`servers.local_servers(directory)` is the entry point. The daemon uses nothing of this package.
"""
