"""Sources of rows. Each source is a thin shell around a pure decoder: the I/O is here, the decisions are in the core."""
