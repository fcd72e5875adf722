"""Job `materialize`: whole rows, before and after, from events that only tell what was done to them."""
