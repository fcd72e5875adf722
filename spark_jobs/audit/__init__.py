"""Job `audit`: whether the topics hold what they should."""
