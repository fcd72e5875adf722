"""The protocol's tests: bytes against events, without a socket."""
