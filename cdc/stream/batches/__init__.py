"""What all makers of events share: the batch that is filled, the published spaces, and rows that can't be events."""
