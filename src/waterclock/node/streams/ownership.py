"""Whose is a stream? On a node of its own, always ours.

Every request about a stream asks this first, so that a cluster can answer otherwise one day.
"""

from typing import Protocol


class Ownership(Protocol):
    """Knows which node matches the senders and receivers of a stream."""

    def owner(self, stream: str) -> str | None:
        """Return the HTTP address of the node that owns a stream; None if it is this one."""
        ...


class Alone:
    """There is no other node."""

    def owner(self, stream: str) -> str | None:
        """Return None: the stream is ours."""
        return None
