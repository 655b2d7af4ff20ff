"""Backups of a node: what is in one, how it is written and how it is restored."""
