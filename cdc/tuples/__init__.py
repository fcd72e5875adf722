"""UPDATE and UPSERT on raw tuples, computed on their MessagePack bytes as the server does, including its arithmetic."""
