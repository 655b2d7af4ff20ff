"""Row numbers in the order they came, four bytes each: what one slot of the wheel holds.

Blocks rather than one array: a slot never holds much more memory than it needs, nor copies what it
has to grow; and as it is emptied from the front, in parts, it gives its memory back.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]
Packed = npt.NDArray[np.uint32]

BLOCK_MIN = 32
BLOCK_MAX = 32_768


class _Block:
    __slots__ = ("end", "rows", "start")

    def __init__(self, size: int) -> None:
        self.rows: Packed = np.empty(size, np.uint32)
        self.start = 0
        self.end = 0


class Slot:
    """A queue of row numbers."""

    __slots__ = ("_blocks", "_count")

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, rows: Packed) -> None:
        start = 0
        while start < len(rows):
            block = self._blocks[-1] if self._blocks else None
            if block is None or block.end == len(block.rows):
                # An eighth more than is there: slack stays small however large the slot.
                size = max(BLOCK_MIN, len(rows) - start, self._count // 8)
                block = _Block(min(size, BLOCK_MAX))
                self._blocks.append(block)
            end = min(len(rows), start + len(block.rows) - block.end)
            block_end = block.end + end - start
            block.rows[block.end : block_end] = rows[start:end]
            block.end = block_end
            start = end
        self._count += len(rows)

    def first(self, count: int) -> Rows:
        """Return the first `count` rows, or as many as there are."""
        parts: list[Packed] = []
        for block in self._blocks:
            if count <= 0:
                break
            parts.append(block.rows[block.start : min(block.end, block.start + count)])
            count -= len(parts[-1])
        return np.concatenate(parts).astype(np.intp)

    def take(self, count: int) -> Rows:
        """Remove and return the first `count` rows, or as many as there are."""
        taken: list[Packed] = []
        left = count
        while left > 0 and self._blocks:
            block = self._blocks[0]
            end = min(block.end, block.start + left)
            taken.append(block.rows[block.start : end])
            left -= end - block.start
            block.start = end
            if end == block.end:
                self._blocks.popleft()
        self._count -= count - left
        rows = np.concatenate(taken) if len(taken) != 1 else taken[0]
        return rows.astype(np.intp)
