"""The id entries of one segment, as its `.ids` side-car holds them.

Two sorted arrays: of the ids that dedup remembers, and of those published with `allow_duplicate`,
which it does not, but by which somebody may want to cancel a message.
"""

from typing import Final, NamedTuple

import numpy as np

from waterclock.log.id_index.runs import Entries, merged

_COUNT_BYTES: Final = 8


class IdEntries(NamedTuple):
    """Sorted entries; see `id_runs` for what an entry is."""

    tracked: Entries
    untracked: Entries

    def encode(self) -> memoryview:
        """Return the body of the `.ids` side-car."""
        count = np.array([len(self.tracked)], np.uint64)
        return np.concatenate([count, self.tracked, self.untracked]).view(np.uint8).data

    @classmethod
    def decode(cls, body: memoryview) -> "IdEntries | None":
        """Return the entries in a side-car's body, as they lie there; None if it cannot be one."""
        if len(body) < _COUNT_BYTES or len(body) % _COUNT_BYTES:
            return None
        values = np.frombuffer(body, np.uint64)
        count = int(values[0])
        if count >= len(values):
            return None
        return cls(values[1 : 1 + count], values[1 + count :])


class IdPieces(NamedTuple):
    """Sorted arrays that together hold all entries of a segment so far; they do not change."""

    tracked: list[Entries]
    untracked: list[Entries]

    def merged(self) -> IdEntries:
        """Merge them; slow for millions, and may be done on another thread."""
        return IdEntries(_one(self.tracked), _one(self.untracked))


def _one(runs: list[Entries]) -> Entries:
    # What is one already stays where it lies: a side-car's memory map, most often.
    return runs[0] if len(runs) == 1 else merged(runs)
