"""The measurements: `python -m tests.bench`, or `make bench`."""
