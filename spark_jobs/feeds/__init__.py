"""Jobs that keep something else equal to the spaces: search indexes, caches."""
