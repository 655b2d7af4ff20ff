"""Which records of a call are new, and the position each of them gets.

Every store that counts positions itself asks this, inside the transaction that holds the stream's
counter: what is known of the ids is true until it ends.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from waterclock.stores.base import Stored


class Placed(NamedTuple):
    """The answer to a call, and what it has to write."""

    stored: list[Stored]
    new_rows: list[int]
    """The records to write, in order: they get the positions behind the last one."""
    last: int
    """The last position once they are written."""


def place(keys: Sequence[bytes], known: Mapping[bytes, int], last: int) -> Placed:
    """Give each id its first position: a known one, one of this call, or the next."""
    positions = dict(known)
    stored: list[Stored] = []
    new_rows: list[int] = []
    for row, key in enumerate(keys):
        position = positions.get(key)
        if position is None:
            last += 1
            positions[key] = last
            new_rows.append(row)
            stored.append(Stored(last, is_new=True))
        else:
            stored.append(Stored(position, is_new=False))
    return Placed(stored, new_rows, last)
