"""What the server computes on raw tuples: UPDATE, UPSERT and their arithmetic, over MessagePack's bytes."""
