"""Job `history`: each row as it was, from when to when."""
