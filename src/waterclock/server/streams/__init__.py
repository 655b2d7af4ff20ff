"""In-memory streams over HTTP: send, receive, store and server-sent events."""
