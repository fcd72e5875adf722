"""What operators are told about the stream: warnings and counts."""
