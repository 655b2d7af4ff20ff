"""Copies of a partition's log on several nodes: who leads, what is committed. Pure."""
