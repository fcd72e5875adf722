"""What the topics say: their names, envelopes, forms, and texts of keys and rows."""
