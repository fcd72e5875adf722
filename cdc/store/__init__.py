"""What lies on disk: the state store (LMDB), its writer, and large transactions that wait."""
