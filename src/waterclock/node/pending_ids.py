"""Where the messages of some ids are: indexes of ids propose, the stored ids decide.

The index of dedup spans its window; a message may be pending for longer. So what it has forgotten
is looked for in the side-cars of those segments. What was published with `allow_duplicate` has an
index of its own.
"""

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from waterclock.log.arrays import binaries
from waterclock.log.fingerprint import Fingerprints
from waterclock.log.ids import Candidates
from waterclock.model.errors import BadInput
from waterclock.node.partition_host import PartitionHost
from waterclock.storage.forgotten_ids import ForgottenIds
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.reader import Keys

Int64s = npt.NDArray[np.int64]

NOWHERE = -1
CONFIRM_SLICE = 1_000
"""Stored ids compared in one go: each may be in a frame of its own."""


class IdSearch:
    """Finds messages by id."""

    def __init__(self) -> None:
        self._forgotten: WeakKeyDictionary[PartitionStore, ForgottenIds] = WeakKeyDictionary()

    def pending(
        self, host: PartitionHost, ids: Sequence[bytes], keys: Keys
    ) -> Iterator[Candidates]:
        """Yield (rows, offsets) of all messages of each id, and key, pending in a partition.

        In slices: there may be many of one id. They were pending when they were yielded.
        """
        rows, offsets = self._candidates(host, ids)
        is_open = host.scheduler.is_open(offsets)
        rows, offsets = rows[is_open], offsets[is_open]
        for start in range(0, len(rows), CONFIRM_SLICE):
            part = slice(start, start + CONFIRM_SLICE)
            # What fired since the last slice may be gone from the log.
            still = host.scheduler.is_open(offsets[part])
            found = Candidates(rows[part][still], offsets[part][still])
            is_it = host.store.reader.has_ids(found.offsets, *_asked(found, ids, keys))
            yield Candidates(found.rows[is_it], found.offsets[is_it])

    def latest(
        self, host: PartitionHost, ids: Sequence[bytes], keys: Keys
    ) -> tuple[Int64s, Int64s]:
        """Return offset and append time of the last message of each id that is pending no more.

        Both -1 where a partition knows of none. By key as well, as far as that is still known.
        """
        latest = np.full(len(ids), NOWHERE, np.int64)
        appended_ms = latest.copy()
        rows, offsets = self._candidates(host, ids)
        is_over = ~host.scheduler.is_open(offsets)
        order = np.lexsort((-offsets[is_over], rows[is_over]))
        rows, offsets = rows[is_over][order], offsets[is_over][order]
        count = 1
        while len(rows):
            # The last of each first: nearly always it is the one. Else more at once, and more.
            is_next = np.arange(len(rows)) - rows.searchsorted(rows) < count
            found = Candidates(rows[is_next], offsets[is_next])
            times = host.store.reader.append_times(found.offsets, *_asked(found, ids, keys))
            # From the first to the last of each: the last one stays.
            for at in np.flatnonzero(times != NOWHERE)[::-1].tolist():
                latest[found.rows[at]] = found.offsets[at]
                appended_ms[found.rows[at]] = times[at]
            is_left = ~is_next & (latest[rows] == NOWHERE)
            rows, offsets = rows[is_left], offsets[is_left]
            count *= 2
        return latest, appended_ms

    def _candidates(self, host: PartitionHost, ids: Sequence[bytes]) -> Candidates:
        store = host.store
        index = store.ids
        if index is None:
            raise BadInput(
                "message_id: this node keeps no index of ids (dedup.enabled is off): "
                "name the message by its partition and offset"
            )
        fps = index.fingerprints(binaries(ids))
        found = [index.lookup(fps), index.untracked.lookup(fps), self._lost(store, fps)]
        return Candidates(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def _lost(self, store: PartitionStore, fps: Fingerprints) -> Candidates:
        forgotten = self._forgotten.get(store)
        if forgotten is None:
            forgotten = self._forgotten[store] = ForgottenIds(store)
        return forgotten.lookup(fps)


def _asked(
    candidates: Candidates, ids: Sequence[bytes], keys: Keys
) -> tuple[list[bytes], list[bytes | None]]:
    """Return the id and the key that each candidate is proposed for."""
    rows = candidates.rows.tolist()
    return [ids[row] for row in rows], [keys[row] for row in rows]
