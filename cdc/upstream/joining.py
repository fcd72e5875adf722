"""What a registered daemon costs the replica set: members without data may be unable to join it.

From 2.11 on, a server that joins asks the members which instances are registered. With its default bootstrap_strategy, "auto", it
refuses to join if these are more than the addresses in its own box.cfg.replication, whether those answer or not. A daemon is an
instance without an address, so in most replica sets it is the one too many.

The daemon doesn't listen in a member's stead. Only the number of addresses counts, so an answer wouldn't help; whoever adds an
address for the daemon can as well choose another strategy; and members with that address would try to follow the daemon.

Sources: replication.cc (replicaset_update), box.cc (box_process_vote); the same from 2.11.0 to 3.8.0.
"""

from __future__ import annotations

from uuid import UUID

from cdc.protocol.ballot import Ballot


def warning(ballot: Ballot, daemon: UUID) -> str | None:
    """Return what to know before a member joins; None if no member of this server's version would refuse to."""
    if ballot.registered is None:
        return None
    count = len(ballot.registered | {daemon})
    return (
        "while the daemon has an id, a member without data (a new one, or one that lost its disk) may be unable to join. From "
        "Tarantool 2.11 on, it ends with “Some replica set members were not specified in box.cfg.replication” if that setting "
        f"has fewer addresses than _cluster has instances: {count} with this daemon, which has no address. Then start that "
        "member with bootstrap_strategy = 'legacy' until it has joined, or first stop the daemon and run `tarantool-cdc "
        'unregister`. With source.mode = "anonymous" the daemon needs no id.'
    )
