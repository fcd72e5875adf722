"""The operator's interfaces: status, metrics, HTTP, log, progress, and requests to a running daemon."""
