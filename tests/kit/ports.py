"""Ports that are free, one after the other, as nodes of a local cluster have them."""

from benchmarks.peers.ports import free_in_a_row

__all__ = ["free_in_a_row", "free_rows"]


def free_rows(rows: int, count: int) -> list[int]:
    """Return the first port of each of some rows, which have none in common."""
    first = free_in_a_row(rows * count)
    return [first + row * count for row in range(rows)]
