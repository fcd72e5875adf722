"""Tarantool's replication protocol, without I/O: received bytes become events, and method calls become bytes to send.

Sources: src/box/iproto_constants.h, xrow.c, applier.cc and relay.cc of Tarantool, and captures of live 2.6.0, 2.11.5 and
3.3.0 servers (tests/captures). Where a source and a capture disagree, the code follows the capture.
"""
