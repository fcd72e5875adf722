"""Format of published changes: rows and keys as JSON, the envelope, the topics' names."""
