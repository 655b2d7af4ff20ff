"""Where the messages of some ids are: indexes of ids propose, the stored ids decide.

The index of dedup spans its window; a message may be pending for longer. So what it has forgotten
is looked for in the side-cars of those segments. What was published with `allow_duplicate` has an
index of its own.

One id may have been used a million times. So nothing is kept but what was found: a search goes
through the indexes as they were when it began, some entries at a time, and others get a turn after
a bounded piece of work.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from waterclock.log.id_index.index import Candidates, IdIndex
from waterclock.log.id_index.runs import SEGMENT_OFFSETS_MAX, Entries, Ranges, ranges_in_run
from waterclock.log.schema import binaries
from waterclock.model.errors import BadInput
from waterclock.node.partition.host import PartitionHost
from waterclock.storage.forgotten_ids import ForgottenIds
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.reader import Keys

Int64s = npt.NDArray[np.int64]

NOWHERE = -1
CONFIRM_SLICE = 1_000
"""Stored ids compared in one go: each may be in a frame of its own."""
ENTRIES_SLICE = 8_000
"""Entries taken from an index in one go: an eighth of the work each."""
_PER_CONFIRM = ENTRIES_SLICE // CONFIRM_SLICE
_RELATIVE = np.uint64(SEGMENT_OFFSETS_MAX - 1)


class IdSearch:
    """Finds messages by id."""

    def __init__(self) -> None:
        self._forgotten: WeakKeyDictionary[PartitionStore, ForgottenIds] = WeakKeyDictionary()

    async def pending(
        self, host: PartitionHost, ids: Sequence[bytes], keys: Keys
    ) -> AsyncIterator[Candidates]:
        """Yield (rows, offsets) of all messages of each id, and key, pending in a partition.

        In slices: there may be many of one id. They were pending when they were yielded.
        """
        turns = Turns()
        fps = _index(host).fingerprints(binaries(ids))
        async for base, run in self._runs(host.store):
            ranges = ranges_in_run(run, fps)
            await turns.spend(1 + len(fps) // _PER_CONFIRM)
            for part in ranges.parts(ENTRIES_SLICE):
                rows, offsets = _candidates(base, run, part)
                is_open = host.scheduler.timers.is_open(offsets)
                rows, offsets = rows[is_open], offsets[is_open]
                await turns.spend(len(is_open) // _PER_CONFIRM)
                for start in range(0, len(rows), CONFIRM_SLICE):
                    piece = slice(start, start + CONFIRM_SLICE)
                    # What fired since it was proposed may be gone from the log.
                    still = host.scheduler.timers.is_open(offsets[piece])
                    found = Candidates(rows[piece][still], offsets[piece][still])
                    is_it = host.store.reader.has_ids(found.offsets, *_asked(found, ids, keys))
                    yield Candidates(found.rows[is_it], found.offsets[is_it])
                    await turns.spend(len(is_it))

    async def latest(
        self, host: PartitionHost, ids: Sequence[bytes], keys: Keys
    ) -> tuple[Int64s, Int64s]:
        """Return offset and append time of the last message of each id that is pending no more.

        Both -1 where a partition knows of none. By key as well, as far as that is still known.
        """
        turns = Turns()
        latest = np.full(len(ids), NOWHERE, np.int64)
        appended_ms = latest.copy()
        fps = _index(host).fingerprints(binaries(ids))
        async for base, run in self._runs(host.store):
            left = ranges_in_run(run, fps)
            await turns.spend(1 + len(fps) // _PER_CONFIRM)
            count = 1
            while len(left.rows):
                # The last of each first: nearly always it is the one. Else more at once, and more.
                starts = np.maximum(left.starts, left.ends - count)
                found = _candidates(base, run, left._replace(starts=starts))
                for row, offset, time_ms in _over(host, found, latest, ids, keys):
                    # From the first to the last of each: the last one stays.
                    latest[row], appended_ms[row] = offset, time_ms
                await turns.spend(len(found.rows))
                is_left = (starts > left.starts) & (_offsets(base, run[starts]) > latest[left.rows])
                left = Ranges(left.rows[is_left], left.starts[is_left], starts[is_left])
                count = max(1, min(2 * count, CONFIRM_SLICE // max(1, len(left.rows))))
        return latest, appended_ms

    async def _runs(self, store: PartitionStore) -> AsyncIterator[tuple[int, Entries]]:
        """Yield all sorted arrays of entries there are now, with their base, the newest first."""
        assert store.ids is not None
        forgotten = self._forgotten.get(store)
        if forgotten is None:
            forgotten = self._forgotten[store] = ForgottenIds(store)
        pieces, lost = store.ids.pieces(), forgotten.segments()
        for base, run in sorted(pieces, key=lambda piece: -piece[0]):
            yield base, run
        for each in reversed(lost):
            entries = forgotten.mapped(each)
            if entries is None:
                entries = await asyncio.to_thread(forgotten.derive, each)
            for run in each.missing(entries):
                yield each.segment.base_offset, run


class Turns:
    """Lets everyone else have a turn after as much work as comparing a slice of stored ids."""

    def __init__(self) -> None:
        self._left = CONFIRM_SLICE

    async def spend(self, work: int) -> None:
        """Count work that was done, in ids compared."""
        self._left -= work
        if self._left <= 0:
            self._left = CONFIRM_SLICE
            await asyncio.sleep(0)


def _index(host: PartitionHost) -> IdIndex:
    index = host.store.ids
    if index is None:
        raise BadInput(
            "message_id: this node keeps no index of ids (dedup.enabled is off): "
            "name the message by its partition and offset"
        )
    return index


def _offsets(base: int, entries: Entries) -> Int64s:
    return (entries & _RELATIVE).astype(np.int64) + base


def _candidates(base: int, run: Entries, ranges: Ranges) -> Candidates:
    rows, entries = ranges.matches(run)
    return Candidates(rows, _offsets(base, entries))


def _over(
    host: PartitionHost, proposed: Candidates, latest: Int64s, ids: Sequence[bytes], keys: Keys
) -> list[tuple[int, int, int]]:
    """Return (row, offset, append time) of those behind the latest that are pending no more."""
    rows, offsets = proposed
    # Since the search began, retention may have taken some.
    is_meant = (offsets > latest[rows]) & (offsets >= host.store.start)
    is_meant &= ~host.scheduler.timers.is_open(offsets)
    found = Candidates(rows[is_meant], offsets[is_meant])
    times = host.store.reader.append_times(found.offsets, *_asked(found, ids, keys))
    at = np.flatnonzero(times != NOWHERE)
    columns = (found.rows[at].tolist(), found.offsets[at].tolist(), times[at].tolist())
    return list(zip(*columns, strict=True))


def _asked(
    candidates: Candidates, ids: Sequence[bytes], keys: Keys
) -> tuple[list[bytes], list[bytes | None]]:
    """Return the id and the key that each candidate is proposed for."""
    rows = candidates.rows.tolist()
    return [ids[row] for row in rows], [keys[row] for row in rows]
