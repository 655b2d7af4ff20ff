"""Replacing a replica's log by a copy of its leader's segments, whole or not at all."""
