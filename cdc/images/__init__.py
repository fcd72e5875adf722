"""The pure half of the state store: keys as bytes, pending tuples over the stored ones, events with before and after."""
