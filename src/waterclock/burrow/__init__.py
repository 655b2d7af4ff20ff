"""Parallel consumption with ordered commits: many workers on one partition, and nothing lost."""
