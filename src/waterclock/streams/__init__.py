"""In-memory streams: rings, positions, waiters, resume tokens. Pure."""
