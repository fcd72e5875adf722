"""What the tests of the pure core drive it with: captures, a master without a socket, workloads, golden files."""
