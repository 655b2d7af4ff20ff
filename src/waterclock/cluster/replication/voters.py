"""Majorities: any two of the same voters have one voter in common."""

from collections.abc import Collection, Iterable

from waterclock.model.ids import Offset


def majority_of(voters: Collection[str]) -> int:
    """Return how many of them make a majority."""
    return len(voters) // 2 + 1


def majority_end(ends: Iterable[Offset]) -> Offset:
    """Return the greatest end that a majority of the voters has reached."""
    ordered = sorted(ends)
    return ordered[(len(ordered) - 1) // 2]
