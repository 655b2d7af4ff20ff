"""Replicated partitions under a loop: the coordinator, the channels, and what the cores decide."""
