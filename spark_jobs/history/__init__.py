"""Job `history`: every version of each row, and the interval in which it held."""
