"""What the tests of the pure core drive it with: captures, a master without a socket, workloads, golden files.

The simulation (tests/simulation) is the world for whatever concerns the whole daemon. Two fakes resemble parts of it, and stay:

- `master` is the simulation's own server, behind its network; `synchronous`, `interleavings`, `fates` and `consumer` are its
  limbo, its work and its judge's text book. So there is one master. The tests of the core play it without a network: a test
  decides row by row what arrives, and there are no threads, no Kafka and no disk.
- `kafka` is the cluster of the publisher's own tests, in which real threads meet clients that fail at a call that the test names
  (an answer that never comes, a topic that isn't shown, a refused batch). In the simulation a seed decides when Kafka fails, in
  greenlets instead of threads, and nobody can have the third flush fail. What both say of transactions, fencing and offsets is
  held to a real broker elsewhere: `tests/simulation/test_librdkafka.py`.
"""
