"""The simulation: the whole daemon in a world that one seed decides, in one thread.

    seed ─▶ Scheduler: whose turn it is, and what time ─┬─▶ the daemon: the product's own code, as greenlets
                                                        ├─▶ a member that writes, waits for quorums, rolls back, alters
                                                        ├─▶ the network, Kafka's brokers and clients
                                                        └─▶ faults                        Judge: what must be true, each step

The product isn't changed for this. Where its modules meet time, threads, the network and Kafka's library, they do so by names of
their own (`time`, `threading`, `Producer`), and these names are the seams: `library.REPLACED` lists them all, and
`test_seams.py` holds that no module is forgotten. The simulated library and the real one answer the same tests
(`test_library.py`).

What is real, and why:

- LMDB and the files in state.path, in a folder of each seed's own: the store's logic is tested with its real engine. Locks and
  environments of a killed process are closed as the system would do it.
- The compiled row path, whichever is in use.

What stays outside is listed in `test_seams.OUTSIDE`, with the reasons.

    python -m tests.simulation --seeds 1000             seeds 1 to 1000
    python -m tests.simulation --first 4711 --seeds 1   one seed, again

What it walks that other tests without servers don't (branches; 100 steered seeds, and tests/daemon and tests/kafka):

    package       branches   tests of the package   seeds   seeds alone
    cdc/daemon         718                    477     425           131   standbys' stores, returns to the checkpoint, members
    cdc/kafka          738                    634     422            10   signs of life that end, a sender without room
    cdc/stream        1524           not measured     763             -

A seed has about 1,100 steps and three faults; one core takes 7,500 (beside other work) to 12,500 steps a second. 10,000 seeds are
some 21 simulated hours, and 1,200 s of one core.

`python -m tests.simulation` prints how often each edge of the state diagrams was walked, and which never were.

What happens in it, besides: two machines with a standby on one of them (a fifth of the seeds), a machine that is cut off from
Kafka, images of either kind, images that are switched on and off, spaces that are left out for a while, another delivery from
some start on, `verify`, `position set`; connections that are over, and that a member has for open ones, so that it refuses the
next; a space in vinyl, where a key in another notation may be found or not; a power failure that takes what wasn't synced, each
file by itself, and a disk that has lied about syncs.

What doesn't, and why:

- a handshake that is repeated: each greeting has a salt of its own, so the second session knows no user, and asks for nothing
- pages of the store that are lost one by one on a disk that lies: LMDB has no checksums, and nobody notices but `verify`
- keys written longer than need be, which are two rows for the server and one for the daemon: docs/events.md says so
- images that are switched on and off where keys are altered, or events may come twice: patches can't be told apart then
- two machines that lose what was synced, or whose images are switched: one of both has other settings, or asks its operator
- checkpoints that are lost while an operator or a standby of at_least_once is frozen: docs/guarantees.md excuses what comes of it

Modules: `scheduler` (whose turn it is), `library` (time, threads, polling), `network` and `members`, `brokers` and `librdkafka`
(Kafka and its clients), `faults`, `judge`, `patches` (what it expects without a store), `unknown_spaces` (what it excuses),
`standbys` (two machines), `operators` (commands), `disks` (what is there after a power failure), `vinyl` (that space), `world`
(all of it together), `edges` (what was walked), `shrinking`, `slips` (deliberate bugs).
"""
