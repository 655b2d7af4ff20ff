"""How scheduled messages ended that did not fire, so that a later cancel can be answered.

Each segment knows it of the `cancel` frames in it; once a scheduled message is gone from the log,
the `seen` frame that has its id says it, for as long as ids are remembered. Here they are collected
as frames are written or read, in few ordered arrays, however small the cancels.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from waterclock.log.arrays import distinct, is_among

Int64s = npt.NDArray[np.int64]
Endings = npt.NDArray[np.uint8]
_NOTHING: Int64s = np.zeros(0, dtype=np.int64)


class Ending(IntEnum):
    """What became of a message. The numbers are on disk, in `seen` frames."""

    DELIVERED = 0
    """It was for now, or has fired."""
    CANCELLED = 1
    EXPIRED = 2


class Ended:
    """Offsets of scheduled messages that ended in one way."""

    __slots__ = ("_pieces",)

    def __init__(self, offsets: Int64s = _NOTHING) -> None:
        self._pieces: list[Int64s] = [offsets] if len(offsets) else []

    def add(self, offsets: Int64s) -> None:
        """Note some, in any order."""
        pieces = self._pieces
        pieces.append(np.sort(offsets))
        # Joined as they become alike in size.
        while len(pieces) > 1 and len(pieces[-2]) <= 2 * len(pieces[-1]):
            last, before = pieces.pop(), pieces.pop()
            pieces.append(np.sort(np.concatenate([before, last]), kind="stable"))

    def has(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Tell which of these are among them."""
        found = np.zeros(len(offsets), np.bool_)
        for piece in self._pieces:
            found |= is_among(offsets, piece)
        return found

    def all(self) -> Int64s:
        """Return them in order, each once."""
        return distinct(np.concatenate([_NOTHING, *self._pieces]))

    def copy(self) -> "Ended":
        """Return a twin that later words do not change."""
        twin = Ended()
        twin._pieces = self._pieces.copy()
        return twin
