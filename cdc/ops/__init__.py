"""What an operator sees: status, metrics, HTTP, log, progress; and what may be asked of a running daemon."""
