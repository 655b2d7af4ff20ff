"""Streams stored in the node's own log."""
