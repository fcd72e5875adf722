"""The form of every space at every position, folded from the rows of the same stream."""
