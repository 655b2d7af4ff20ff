"""In-memory streams on a running node, and the way into and out of their store."""
