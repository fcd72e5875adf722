"""The form of every space at every position, computed from the stream's own rows of system spaces."""
