"""Data on disk: the state store (LMDB), its writer, and the spool for large transactions."""
