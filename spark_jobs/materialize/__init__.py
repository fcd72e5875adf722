"""Job `materialize`: complete rows, before and after, from events that only contain the operations on them."""
