"""Where the messages of one stream lie in the log: positions to offsets, 16 bytes a message.

Positions are dense, so the n-th entry is the n-th position and need not say so. What was removed
stays as the complement of its offset until all before it has gone too: then the front is cut off,
once it is most of the index. Times of expiry are kept only where some message has one.
"""

from array import array
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

NEVER = -1
CUT_MIN = 1_024
"""Removed entries at the front worth cutting off."""


class StreamIndex:
    """The messages of one stream: the offset and the times of each position."""

    __slots__ = ("_expires_ms", "_offsets", "_stored_ms", "first", "kept", "last", "removal")

    def __init__(self) -> None:
        self.first = 1
        """The position of the first entry."""
        self.last = 0
        """The last position given out."""
        self.kept = 0
        """Messages that are not removed."""
        self.removal = NEVER
        """The offset of the row about the last removal: it tells `last` if nobody else does."""
        self._offsets = array("q")
        self._stored_ms = array("q")
        self._expires_ms: array[int] | None = None

    def __repr__(self) -> str:
        return f"<StreamIndex {self.kept} messages, the last at {self.last}>"

    def add(self, position: int, offset: int, *, stored_ms: int, expires_ms: int) -> None:
        """Note a message; positions that were skipped are gone from the log already."""
        if position != self.last + 1:
            self._skip_to(position, offset)
        self.last = position
        self.kept += 1
        self._offsets.append(offset)
        self._stored_ms.append(stored_ms)
        if self._expires_ms is not None:
            self._expires_ms.append(expires_ms)
        elif expires_ms != NEVER:
            self._expires_ms = array("q", [NEVER]) * (len(self._offsets) - 1)
            self._expires_ms.append(expires_ms)

    def note_last(self, last: int, offset: int) -> None:
        """Take in that positions up to `last` were given out before an offset was written."""
        if last > self.last:
            self._skip_to(last + 1, offset)
            self.last = last

    def _skip_to(self, position: int, offset: int) -> None:
        assert position > self.last
        if not self._offsets:
            self.first = position
            return
        # They lie before the one that comes; any offset in between keeps the order.
        gone = position - self.last - 1
        self._offsets.extend([~(offset - 1)] * gone)
        self._stored_ms.extend([0] * gone)
        if self._expires_ms is not None:
            self._expires_ms.extend([NEVER] * gone)

    def position_of(self, offset: int) -> int | None:
        """Give the position of the message at an offset, None if it is removed."""
        entry = bisect_left(self._offsets, offset, key=_place)
        if entry < len(self._offsets) and self._offsets[entry] == offset:
            return self.first + entry
        return None

    def is_expired(self, position: int, now_ms: int) -> bool:
        """Tell whether the message at a position is of no use any more."""
        if self._expires_ms is None:
            return False
        expires_ms = self._expires_ms[position - self.first]
        return expires_ms != NEVER and expires_ms <= now_ms

    def durable_last(self, end: int) -> int:
        """Give the last position whose message lies below an offset."""
        last = self.last
        entry = len(self._offsets) - 1
        while entry >= 0 and _place(self._offsets[entry]) >= end:
            entry -= 1
            last -= 1
        return last

    def page(self, after: int, limit: int, *, now_ms: int, end: int) -> tuple[Int64s, Int64s]:
        """Give the positions and offsets of up to `limit` messages kept below the offset `end`.

        Slices are looked at one by one, so that a page costs what it holds.
        """
        start = max(after + 1 - self.first, 0)
        step = max(limit, CUT_MIN)
        positions, offsets = [], []
        found = 0
        while start < len(self._offsets) and found < limit:
            stop = min(start + step, len(self._offsets))
            places = np.array(self._offsets[start:stop], np.int64)
            keep = (places >= 0) & (places < end)
            if self._expires_ms is not None:
                expires = np.array(self._expires_ms[start:stop], np.int64)
                keep &= (expires == NEVER) | (expires > now_ms)
            entries = np.flatnonzero(keep)[: limit - found]
            positions.append(entries + (self.first + start))
            offsets.append(places[entries])
            found += len(entries)
            start, step = stop, step * 2
        if not positions:
            return _NONE, _NONE
        return np.concatenate(positions), np.concatenate(offsets)

    def kept_offsets(self) -> Int64s:
        """Give the offsets of all messages that are not removed."""
        places = np.array(self._offsets, np.int64)
        return places[places >= 0]

    # Removing

    def older_than(self, before_ms: int | None) -> Int64s:
        """Give the positions of the messages stored before a time, or of all."""
        is_meant = np.array(self._offsets, np.int64) >= 0
        if before_ms is not None:
            is_meant &= np.array(self._stored_ms, np.int64) < before_ms
        return np.flatnonzero(is_meant) + self.first

    def expired(self, now_ms: int, limit: int) -> Int64s:
        """Give the positions of up to so many messages that are of no use any more."""
        if self._expires_ms is None:
            return _NONE
        expires = np.array(self._expires_ms, np.int64)
        is_meant = (expires != NEVER) & (expires <= now_ms)
        is_meant &= np.array(self._offsets, np.int64) >= 0
        return np.flatnonzero(is_meant)[:limit] + self.first

    def next_expiry_ms(self) -> int | None:
        """Give the earliest time at which a message expires."""
        if self._expires_ms is None:
            return None
        expires = np.array(self._expires_ms, np.int64)
        expires = expires[(expires != NEVER) & (np.array(self._offsets, np.int64) >= 0)]
        return int(expires.min()) if len(expires) else None

    def remove(self, start: int, end: int) -> int:
        """Forget the messages at [start, end); say how many there were."""
        span = slice(max(start - self.first, 0), max(end - self.first, 0))
        places = np.array(self._offsets[span], np.int64)
        count = int((places >= 0).sum())
        places[places >= 0] ^= -1  # the complement
        self._offsets[span] = array("q", places.tobytes())
        self.kept -= count
        self._cut()
        return count

    def _cut(self) -> None:
        """Cut off what is removed at the front, once it is most of the index."""
        if not self.kept:
            gone = len(self._offsets)
        elif self.kept < len(self._offsets) // 2 and len(self._offsets) > CUT_MIN:
            gone = int(np.argmax(np.array(self._offsets, np.int64) >= 0))
        else:
            return
        del self._offsets[:gone]
        del self._stored_ms[:gone]
        if self._expires_ms is not None:
            del self._expires_ms[:gone]
        self.first += gone


def ranges_of(positions: Int64s) -> list[tuple[int, int]]:
    """Give ascending positions as [start, end) ranges."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    starts = positions[np.concatenate(([0], breaks))]
    ends = positions[np.concatenate((breaks - 1, [len(positions) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _place(entry: int) -> int:
    """Give the offset of an entry, removed or not."""
    return entry if entry >= 0 else ~entry


_NONE: Int64s = np.empty(0, np.int64)
