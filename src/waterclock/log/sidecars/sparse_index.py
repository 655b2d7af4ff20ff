"""The sparse index of a segment: where to start reading for an offset or an append time.

One entry every `every_bytes` of log: the first offset and position of a block of frames, and the
append time of its first frame. Append times never step back within a log (the store sees to it), so
offsets and append times are both sorted, and found by bisection.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import MutableSequence

from waterclock.log.frame import FrameHeader

_COLUMNS = 3


class SparseIndex:
    """Columns of equal length: offset, position, append_ms."""

    __slots__ = ("_append", "_every_bytes", "_offsets", "_positions")

    def __init__(self, every_bytes: int) -> None:
        self._every_bytes = every_bytes
        self._set([array("q") for _ in range(_COLUMNS)])

    def _set(self, columns: "list[array[int]]") -> None:
        self._offsets: MutableSequence[int]
        self._offsets, self._positions, self._append = columns

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def first_append_ms(self) -> int | None:
        """When the segment's first frame was appended; None if it has none."""
        return self._append[0] if self._append else None

    def add(self, header: FrameHeader, position: int) -> None:
        """Note a frame appended at `position`; frames come in order."""
        self.note(header.base_offset, position, header.append_ms)

    def note(self, base_offset: int, position: int, append_ms: int) -> None:
        """Note a frame by what of it is kept here."""
        if not self._positions or position - self._positions[-1] >= self._every_bytes:
            self._offsets.append(base_offset)
            self._positions.append(position)
            self._append.append(append_ms)

    def position_of_offset(self, offset: int) -> int | None:
        """Return where to start walking to meet the frame that holds `offset`."""
        at = bisect_right(self._offsets, offset) - 1
        return self._positions[at] if at >= 0 else None

    def position_of_append_time(self, append_ms: int) -> int | None:
        """Return where to start walking to meet the first frame appended at or after a time."""
        at = bisect_left(self._append, append_ms) - 1
        return self._positions[max(at, 0)] if self._positions else None

    def copy(self) -> "SparseIndex":
        """Return an index that later frames do not change."""
        twin = SparseIndex(self._every_bytes)
        twin._set([array("q", column) for column in self._columns()])
        return twin

    def _columns(self) -> tuple[MutableSequence[int], ...]:
        return self._offsets, self._positions, self._append

    def encode(self) -> bytes:
        """Return the body of the `.index` side-car: the three columns one after the other."""
        return b"".join(array("q", column).tobytes() for column in self._columns())

    @classmethod
    def decode(cls, body: memoryview, every_bytes: int) -> "SparseIndex | None":
        """Return the index in a side-car's body, or None if it cannot be one."""
        if len(body) % (8 * _COLUMNS):
            return None
        index = cls(every_bytes)
        step = len(body) // _COLUMNS
        columns = [array("q", bytes(body[i * step : (i + 1) * step])) for i in range(_COLUMNS)]
        index._set(columns)
        return index
