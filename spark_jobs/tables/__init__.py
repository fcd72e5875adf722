"""Tables and small files of state."""
