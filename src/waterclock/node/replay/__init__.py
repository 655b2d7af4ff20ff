"""Replays of a topic's past, from its log or from a snapshot."""
