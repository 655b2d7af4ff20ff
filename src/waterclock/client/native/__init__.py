"""The native protocol, as a client speaks it."""
