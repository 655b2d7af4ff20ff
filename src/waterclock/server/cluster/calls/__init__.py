"""Calls about topics that another node answers: where they go, and how they get there."""
