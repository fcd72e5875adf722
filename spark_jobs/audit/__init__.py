"""Job `audit`: check that the topics contain what they should."""
