"""A memcached TAP server over the change stream.

topics ──▶ live ──▶ ring ─┐                               wire, keys, changes, merging, window, session: pure
store ───▶ views ─────────┴─▶ stream ──▶ server ──▶ clients      live, views, session_store, server, sink: threads, disks, sockets
"""
