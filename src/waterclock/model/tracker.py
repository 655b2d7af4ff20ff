"""Which offsets of a partition are done: everything below `committed`, and runs beyond it.

Consumers finish out of order. The tracker holds what is finished as the fewest half-open runs, so
that memory is proportional to the holes and not to the messages: one message stuck for hours below
a million finished ones is one hole and one run. Delivery and burrow share it, and both persist it,
so that a restart redelivers the holes and nothing else (Pulsar, which keeps 10,000 ranges and drops
the rest, once sent two million messages again).

`committed` never goes back. The number of runs is bounded by `runs_max`: beyond it `add` refuses,
and whoever hands out work must wait for a hole to close.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Offset
from waterclock.model.limits import RUNS_MAX

_VERSION = 1


class OffsetTracker:
    """Done offsets: [0, committed) and disjoint, ordered runs with a gap before each."""

    __slots__ = ("_committed", "_ends", "_runs_max", "_starts")

    def __init__(self, committed: int = 0, *, runs_max: int = RUNS_MAX) -> None:
        self._committed = committed
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._runs_max = runs_max

    def __repr__(self) -> str:
        return f"<OffsetTracker committed {self._committed}, {len(self._starts)} runs beyond>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetTracker):
            return NotImplemented
        return (self._committed, list(self.runs())) == (other._committed, list(other.runs()))

    __hash__ = None  # type: ignore[assignment]

    @property
    def committed(self) -> Offset:
        """Everything below this is done."""
        return Offset(self._committed)

    @property
    def end(self) -> Offset:
        """Nothing at or above this is done."""
        return Offset(self._ends[-1] if self._ends else self._committed)

    @property
    def run_count(self) -> int:
        """How many runs stand beyond `committed`."""
        return len(self._starts)

    def runs(self) -> Iterator[tuple[Offset, Offset]]:
        """Yield the runs beyond `committed`, in order."""
        for start, end in zip(self._starts, self._ends, strict=True):
            yield Offset(start), Offset(end)

    def __contains__(self, offset: int) -> bool:
        if offset < self._committed:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Mark [start, end) as done; what is done already may be marked again."""
        if not 0 <= start <= end:
            raise BadInput(f"[{start}, {end}) is no range of offsets")
        start = max(start, self._committed)
        if start >= end:
            return
        # Runs that overlap or touch the new one become part of it.
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        if start == self._committed:
            self._committed = end
            del self._starts[:last], self._ends[:last]
            return
        if first == last and len(self._starts) >= self._runs_max:
            raise LimitExceeded("runs of done offsets", self._runs_max)
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def add_many(self, offsets: npt.NDArray[np.int64]) -> None:
        """Mark single offsets as done, in any order."""
        if not len(offsets):
            return
        ordered = np.unique(offsets)
        cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(ordered, cuts):
            self.add(int(run[0]), int(run[-1]) + 1)

    def missing(self, end: int) -> Iterator[tuple[Offset, Offset]]:
        """Yield the ranges below `end` that are not done, in order."""
        at = self._committed
        for start, run_end in zip(self._starts, self._ends, strict=True):
            if start >= end:
                break
            yield Offset(at), Offset(start)
            at = run_end
        if at < end:
            yield Offset(at), Offset(end)

    def encode(self) -> bytes:
        """Return the tracker as bytes: a version, then distances as base-128 numbers."""
        bounds = np.array([self._starts, self._ends], np.int64).T.ravel()
        numbers = np.diff(bounds, prepend=self._committed)
        return bytes([_VERSION]) + _varint(self._committed) + _varints_of(numbers)

    @classmethod
    def decode(cls, data: bytes, *, runs_max: int = RUNS_MAX) -> "OffsetTracker":
        """Return the tracker in `data`, or raise BadInput."""
        if not data or data[0] != _VERSION:
            raise BadInput(
                "not a tracker of done offsets, or of a version this release cannot read"
            )
        numbers = _varints(data[1:])
        if len(numbers) % 2 == 0:
            raise BadInput("the tracker of done offsets is cut short")
        tracker = cls(numbers[0], runs_max=runs_max)
        at = numbers[0]
        for gap, length in zip(numbers[1::2], numbers[2::2], strict=True):
            if not gap or not length:
                raise BadInput("the tracker of done offsets has an empty run or gap")
            tracker.add(at + gap, at + gap + length)
            at += gap + length
        return tracker

    def check_invariants(self) -> None:
        """Fail if runs touch, overlap or are out of order."""
        at = self._committed
        for start, end in zip(self._starts, self._ends, strict=True):
            assert at < start < end
            at = end


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints_of(numbers: npt.NDArray[np.int64]) -> bytes:
    """Return numbers as `_varint` does, all at once: there may be 200,000, and a loop waits."""
    shifts = np.arange(0, 63, 7)
    groups = numbers[:, None] >> shifts
    is_used = (groups > 0) | (shifts == 0)
    # All but the last group of a number say that more follow.
    groups = (groups & 127) | np.where(groups >> 7 > 0, 128, 0)
    return bytes(groups.astype(np.uint8)[is_used])


def _varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        if shift > 56:
            raise BadInput("the tracker of done offsets has a number over 63 bits")
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number, shift = 0, 0
    if shift:
        raise BadInput("the tracker of done offsets is cut short")
    return numbers
