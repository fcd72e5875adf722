"""What the publisher and the checkpoint need to know: commits, owners, topics."""
