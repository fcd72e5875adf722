"""The registry of schemas: asked by a thread of its own, never by a thread that works on rows."""
