"""Jobs that keep other systems in step with the spaces: search indexes, caches."""
