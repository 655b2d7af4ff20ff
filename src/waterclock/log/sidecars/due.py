"""Scheduled messages: opened by `scheduled` frames, ended by `fired` and `cancel`, moved by
`reschedule`.

Each segment has a `DueDelta`: what its frames did to the set of open scheduled messages, net. A
scheduled message may end in a later segment than it was opened in, so a delta speaks of earlier
segments too. Folding the deltas in log order gives the open scheduled messages: `open = open -
ended, moved, + opened`. A delta is derived from its segment alone, so a side-car of one segment
never depends on another.

It also says which scheduled messages its segment cancelled, or let expire, of whatever segment they
were.
"""

import struct
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from waterclock.log.arrays import distinct, is_among
from waterclock.log.sidecars.endings import Ended, Ending, Endings
from waterclock.log.sidecars.opened import PIECE_ROWS_MAX, Opened

Int64s = npt.NDArray[np.int64]
_Columns = TypeVar("_Columns", tuple[Int64s], tuple[Int64s, Int64s])
_NOTHING: Int64s = np.zeros(0, dtype=np.int64)
_COUNTS = struct.Struct("<QQQQQ")


class DueDelta:
    """What one segment did to the open scheduled messages. Offsets and due times are parallel
    arrays."""

    __slots__ = ("_base_offset", "_cancelled", "_expired", "_moves", "_net", "_opened", "_retired")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._opened = Opened()
        self._moves: list[tuple[Int64s, Int64s]] = []
        self._retired: list[tuple[Int64s]] = []
        self._cancelled = Ended()
        self._expired = Ended()
        self._net: NetDelta | None = None
        """What `net` returned last, or what a side-car held, while nothing has happened since."""

    def open(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Note scheduled messages written in this segment."""
        self._net = None
        self._opened.add(offsets, due_ms)

    def retire(self, offsets: Int64s) -> None:
        """Note scheduled messages that have ended, of this segment or an earlier one."""
        self._net = None
        _push(self._retired, (offsets,))

    def cancel(self, offsets: Int64s, *, has_expired: bool = False) -> None:
        """Note scheduled messages that have ended without firing."""
        self.retire(offsets)
        (self._expired if has_expired else self._cancelled).add(offsets)

    def note_endings(self, offsets: Int64s, found: Endings) -> None:
        """Write over `found` where a scheduled message was cancelled or let expire here."""
        found[self._cancelled.has(offsets)] = Ending.CANCELLED
        found[self._expired.has(offsets)] = Ending.EXPIRED

    def move(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Note scheduled messages that got a new due time."""
        self._net = None
        _push(self._moves, (offsets, due_ms))

    def net(self) -> "NetDelta":
        """Return the net effect, sorted by offset."""
        if self._net is None:
            self._net = self._summed()
        return self._net

    def _summed(self) -> "NetDelta":
        retired = distinct(np.concatenate([_NOTHING, *(r for (r,) in self._retired)]))
        opened, due = self._opened.columns()
        moved, moved_due = _latest(*_joined(self._moves))
        if len(retired):
            keep = ~is_among(opened, retired)
            opened, due = opened[keep], due[keep]
        _apply_moves(opened, due, moved, moved_due)
        keep = (moved < self._base_offset) & ~is_among(moved, retired)
        earlier = retired[retired < self._base_offset]
        endings = self._cancelled.all(), self._expired.all()
        return NetDelta(opened, due, earlier, moved[keep], moved_due[keep], *endings)

    def frozen(self) -> "DueDelta":
        """Return a delta that later words do not change: to take its `net` somewhere else."""
        twin = DueDelta(self._base_offset)
        twin._opened, twin._moves = self._opened.copy(), self._moves.copy()
        twin._retired, twin._net = self._retired.copy(), self._net
        twin._cancelled, twin._expired = self._cancelled.copy(), self._expired.copy()
        return twin

    @classmethod
    def resume(cls, base_offset: int, net: "NetDelta") -> "DueDelta":
        """Return a delta that goes on from a net effect loaded from a side-car."""
        delta = cls(base_offset)
        delta._opened = Opened.mapped(net.opened, net.opened_due)
        delta.move(net.moved, net.moved_due)
        delta.retire(net.retired)
        delta._cancelled, delta._expired = Ended(net.cancelled), Ended(net.expired)
        # As it lies in the side-car's memory map: most segments are never added to.
        delta._net = net
        return delta


class NetDelta:
    """The net effect of a segment: the content of its `.due` side-car."""

    __slots__ = ("cancelled", "expired", "moved", "moved_due", "opened", "opened_due", "retired")

    def __init__(
        self,
        opened: Int64s,
        opened_due: Int64s,
        retired: Int64s,
        moved: Int64s,
        moved_due: Int64s,
        cancelled: Int64s = _NOTHING,
        expired: Int64s = _NOTHING,
    ) -> None:
        self.opened = opened
        self.opened_due = opened_due
        self.retired = retired
        self.moved = moved
        self.moved_due = moved_due
        self.cancelled = cancelled
        self.expired = expired

    def note_endings(self, offsets: Int64s, found: Endings) -> None:
        """Write over `found` where a scheduled message was cancelled or let expire here."""
        found[is_among(offsets, self.cancelled)] = Ending.CANCELLED
        found[is_among(offsets, self.expired)] = Ending.EXPIRED

    def encode(self) -> list[memoryview]:
        """Return the body of the `.due` side-car, in parts: it may be too large to be copied."""
        single = (self.retired, self.cancelled, self.expired)
        counts = np.array([len(self.opened), len(self.moved), *map(len, single)], np.int64)
        arrays = (self.opened, self.opened_due, self.moved, self.moved_due, *single)
        return [np.ascontiguousarray(part).view(np.uint8).data for part in (counts, *arrays)]

    @classmethod
    def decode(cls, body: memoryview) -> "NetDelta | None":
        """Return the delta in a side-car's body, or None if it cannot be one."""
        if len(body) < _COUNTS.size:
            return None
        opened, moved, *single = _COUNTS.unpack_from(body)
        if len(body) != _COUNTS.size + 8 * (2 * opened + 2 * moved + sum(single)):
            return None
        values = np.frombuffer(body, dtype=np.int64, offset=_COUNTS.size)
        cuts = np.cumsum([opened, opened, moved, moved, *single[:2]])
        offsets, due, moves, moves_due, retired, cancelled, expired = np.split(values, cuts)
        return cls(offsets, due, retired, moves, moves_due, cancelled, expired)


def open_scheduled(deltas: Iterable[NetDelta]) -> tuple[Int64s, Int64s]:
    """Fold deltas, oldest first, into the open scheduled messages: (offsets, due times), sorted by
    offset."""
    offsets, due = _NOTHING, _NOTHING
    for delta in deltas:
        if len(delta.retired):
            keep = ~is_among(offsets, delta.retired)
            offsets, due = offsets[keep], due[keep]
        _apply_moves(offsets, due, delta.moved, delta.moved_due)
        offsets = np.concatenate([offsets, delta.opened])
        due = np.concatenate([due, delta.opened_due])
    return offsets, due


def endings_of(deltas: Iterable[DueDelta | NetDelta], offsets: Int64s) -> Endings:
    """Return an `Ending` for each scheduled message: which were cancelled or expired, of all these
    tell."""
    found = np.full(len(offsets), Ending.DELIVERED, np.uint8)
    for delta in deltas:
        delta.note_endings(offsets, found)
    return found


def _push(pieces: list[_Columns], piece: _Columns) -> None:
    """Add a piece and join those that have become alike in size: few arrays, however small."""
    pieces.append(piece)
    while len(pieces) > 1 and _is_worth_joining(len(pieces[-2][0]), len(pieces[-1][0])):
        last, before = pieces.pop(), pieces.pop()
        joined = tuple(np.concatenate(columns) for columns in zip(before, last, strict=True))
        pieces.append(joined)  # type: ignore[arg-type]


def _is_worth_joining(before: int, last: int) -> bool:
    return before <= 2 * last and before + last <= PIECE_ROWS_MAX


def _joined(pairs: list[tuple[Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    if not pairs:
        return _NOTHING, _NOTHING
    return np.concatenate([o for o, _ in pairs]), np.concatenate([d for _, d in pairs])


def _latest(offsets: Int64s, due: Int64s) -> tuple[Int64s, Int64s]:
    """Keep the last due time given for each offset, sorted by offset."""
    if not len(offsets):
        return offsets, due
    # np.unique keeps the first of equals, so look from the end.
    unique, first = np.unique(offsets[::-1], return_index=True)
    return unique, due[::-1][first]


def _apply_moves(offsets: Int64s, due: Int64s, moved: Int64s, moved_due: Int64s) -> None:
    """Overwrite, in place, the due times of those `offsets` (sorted) that moved."""
    if not len(offsets) or not len(moved):
        return
    at = np.searchsorted(offsets, moved)
    at[at == len(offsets)] = 0
    hit = offsets[at] == moved
    due[at[hit]] = moved_due[hit]
