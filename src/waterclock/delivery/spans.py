"""Ranges of offsets that carry a value: what a lease, a retry or a dead letter says of them.

Delivery never holds an object for each message. What it knows of messages it knows of half-open
ranges, and ranges that touch and say the same are one. So a thousand messages handed out together
are one span, however many of them are acked later, and in any order the spans are never more than
the messages. Finding and splitting are a binary search and an insert into a list: a fraction of a
microsecond at the sizes the limits allow.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]
"""[start, end) in offsets."""

Value = TypeVar("Value")

HEAP_SLACK = 64
"""Outdated entries that are not worth rebuilding a heap for."""


def ranges_of(offsets: npt.NDArray[np.int64]) -> list[Range]:
    """Return single offsets, in any order, as the fewest ranges."""
    if not len(offsets):
        return []
    ordered = np.unique(offsets)
    cuts = np.flatnonzero(np.diff(ordered) != 1)
    starts = ordered[np.concatenate(([0], cuts + 1))].tolist()
    ends = (ordered[np.append(cuts, len(ordered) - 1)] + 1).tolist()
    return list(zip(starts, ends, strict=True))


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges with each that continues the one before it made part of it."""
    out: list[Range] = []
    for start, end in ranges:
        if out and out[-1][1] == start:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return tuple(out)


class SpanMap(Generic[Value]):
    """Disjoint spans in order, each with a value."""

    __slots__ = ("_ends", "_starts", "_values", "offsets")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[Value] = []
        self.offsets = 0
        """How many offsets the spans cover."""

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} spans over {self.offsets} offsets>"

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        return iter(list(zip(self._starts, self._ends, self._values, strict=True)))

    def columns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[Value]]:
        """Return starts, ends and values, for work on all of them at once."""
        return np.array(self._starts, np.int64), np.array(self._ends, np.int64), self._values

    def first(self) -> tuple[int, int, Value]:
        return self._starts[0], self._ends[0], self._values[0]

    def put(self, start: int, end: int, value: Value) -> None:
        """Add a span over offsets that have none."""
        starts, ends, values = self._starts, self._ends, self._values
        at = bisect_right(starts, start)
        assert start < end
        assert at == 0 or ends[at - 1] <= start, "spans overlap"
        assert at == len(starts) or end <= starts[at], "spans overlap"
        self.offsets += end - start
        first, last = at, at
        if at and ends[at - 1] == start and values[at - 1] == value:
            first, start = at - 1, starts[at - 1]
        if at < len(starts) and starts[at] == end and values[at] == value:
            last, end = at + 1, ends[at]
        starts[first:last] = [start]
        ends[first:last] = [end]
        values[first:last] = [value]

    def cut(self, start: int, end: int) -> list[tuple[int, int, Value]]:
        """Remove what lies in [start, end) and return it, in order."""
        if start >= end:
            return []
        starts, ends = self._starts, self._ends
        at = bisect_right(ends, start)
        if at == len(starts) or starts[at] >= end:
            return []
        if starts[at] > start or end > ends[at]:
            return self._cut_many(at, start, end)
        # Within one span, as nearly every ack is.
        value = self._values[at]
        self.offsets -= end - start
        if end < ends[at]:
            if starts[at] < start:
                starts.insert(at, starts[at])
                ends.insert(at, start)
                self._values.insert(at, value)
                at += 1
            starts[at] = end
        elif starts[at] < start:
            ends[at] = start
        else:
            del starts[at], ends[at], self._values[at]
        return [(start, end, value)]

    def _cut_many(self, first: int, start: int, end: int) -> list[tuple[int, int, Value]]:
        starts, ends, values = self._starts, self._ends, self._values
        last = bisect_left(starts, end)
        found = list(zip(starts[first:last], ends[first:last], values[first:last], strict=True))
        taken = [(max(start, low), min(end, high), value) for low, high, value in found]
        low, _, low_value = found[0]
        _, high, high_value = found[-1]
        left = [(low, start, low_value)] if low < start else []
        if end < high:
            left.append((end, high, high_value))
        starts[first:last] = [span[0] for span in left]
        ends[first:last] = [span[1] for span in left]
        values[first:last] = [span[2] for span in left]
        self.offsets -= sum(high - low for low, high, _ in taken)
        return taken

    def part(self, ranges: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """Return what of some ranges has a span, and what has none: each offset once, in order."""
        inside: list[Range] = []
        outside: list[Range] = []
        named_end: int | None = None
        for start, end in sorted(ranges):
            if named_end is not None:
                start = max(start, named_end)
            if start >= end:
                continue
            named_end = end
            at = bisect_right(self._ends, start)
            while start < end and at < len(self) and self._starts[at] < end:
                low, high = max(start, self._starts[at]), min(end, self._ends[at])
                if start < low:
                    outside.append((start, low))
                inside.append((low, high))
                start, at = high, at + 1
            if start < end:
                outside.append((start, end))
        return inside, outside

    def check_invariants(self) -> None:
        """Fail if spans are empty, overlap, are out of order or miscounted."""
        at = -1
        for start, end, _ in self:
            assert at <= start < end
            at = end
        assert self.offsets == sum(end - start for start, end, _ in self)


class Terms(NamedTuple):
    """What holds for messages that are handed out or wait to be handed out again."""

    failed: int
    """Deliveries that came to nothing; the next, or present, attempt is one more."""
    until_ms: int
    """When the lease ends, or the wait."""
    bytes_each: int


class TimedSpans(SpanMap[Terms]):
    """Spans that end at a time.

    The heap has an entry for each span as it was put in; what was cut since, or put in again with
    another time, is told by looking. It is rebuilt when most of it is outdated.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, int]] = []

    def put(self, start: int, end: int, value: Terms) -> None:
        super().put(start, end, value)
        heappush(self._heap, (value.until_ms, start, end))
        if len(self._heap) > 2 * len(self) + HEAP_SLACK:
            self._heap = [(terms.until_ms, low, high) for low, high, terms in self]
            heapify(self._heap)

    def expire(self, now_ms: int) -> list[tuple[int, int, Terms]]:
        """Remove and return what ends at or before `now_ms`, in the order of offsets."""
        ended: list[tuple[int, int, Terms]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, start, end = heappop(self._heap)
            for low, high, terms in self.cut(start, end):
                if terms.until_ms <= now_ms:
                    ended.append((low, high, terms))
                else:
                    SpanMap.put(self, low, high, terms)
        return sorted(ended)

    def next_deadline(self) -> int | None:
        """Return when the next span ends."""
        while self._heap and self._is_outdated(*self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_outdated(self, until_ms: int, start: int, end: int) -> bool:
        at = bisect_right(self._ends, start)
        while at < len(self) and self._starts[at] < end:
            if self._values[at].until_ms == until_ms:
                return False
            at += 1
        return True

    def check_invariants(self) -> None:
        super().check_invariants()
        for start, end, terms in self:
            # Each offset stands in an entry of its time; entries may be cut off where spans met.
            covers = sorted((s, e) for ms, s, e in self._heap if ms == terms.until_ms)
            at = start
            for low, high in covers:
                at = max(at, high) if low <= at else at
            assert at >= end, f"[{start}, {end}) would not end at {terms.until_ms}"
