"""How a change looks outside: rows and keys as JSON, the envelope, the topics' names."""
