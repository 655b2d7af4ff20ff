"""What is due is written to the log as fired, slice by slice.

A slice is one synchronous step: take the first that are due, read their messages, write them,
retire them. Nothing can come between, so no scheduled message fires twice or after a cancel that
came before it. The size of a slice follows the time that slices take: everyone else waits for a
whole one.

What cannot be written is given back: without room on the disk everything is held, loses nothing,
and is tried again. A disk that failed ends the node.
"""

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from waterclock.log.expiry import expires_ms
from waterclock.log.scheduled import ScheduledRows, scheduled_rows
from waterclock.model.clock import Clock
from waterclock.model.errors import Damaged, StorageError, StorageFull
from waterclock.node.counters import Histogram, PartitionCounters
from waterclock.node.partition.tracing import PartitionSpans
from waterclock.node.schedule.read_ahead import ROWS_MAX, ReadAhead
from waterclock.schedule.timer_index import TimerIndex
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]

FIRE_BYTES_MAX = 8 << 20
"""About how many bytes are fired at once: copying and writing them takes some milliseconds."""
SLICE_MS = 12
"""How long a slice should take: half as many messages are fired at once if it took twice that."""
SLICE_ROWS_MIN = 64
AHEAD_MS = 10_000
"""How far ahead of their time messages are read, once it is only half as far."""
MISSES_MAX = 512
"""Frames read while messages fire, after which it is worth reading ahead first."""

log = logging.getLogger(__name__)


class Firing:
    """Fires the scheduled messages of one partition."""

    def __init__(
        self,
        store: PartitionStore,
        timers: TimerIndex,
        clock: Clock,
        counters: PartitionCounters,
        request_flush: Callable[[], None],
        *,
        rows_max: int,
    ) -> None:
        self._store = store
        self._timers = timers
        self._clock = clock
        self._counters = counters
        self._request_flush = request_flush
        self._ahead = ReadAhead(store, timers.is_open)
        self._reading = asyncio.Lock()
        self._read_until_ms = 0
        """What fires until then was read ahead, but for what was scheduled since, ..."""
        self._unread = 0
        """... which are so many."""
        self._rows_max = rows_max
        self._slice_rows = rows_max
        self.problem: str | None = None
        """Why nothing can be fired at the moment."""
        self.is_over = False
        """Nothing may be fired any more: another node may lead by now."""
        self.spans: PartitionSpans | None = None

    def fire_slice(self) -> bool:
        """Fire the first scheduled messages that are due now; tell whether to call again at
        once."""
        if self.is_over:
            self.problem = "another node may lead"
            return False
        begun_ms = self._clock.monotonic_ms()
        now_ms = self._clock.now_ms()
        offsets = self._timers.tick(now_ms, self._slice_rows)
        if not len(offsets):
            self.problem = None
            self._ahead.misses = 0
            return self._timers.is_due(now_ms)
        try:
            written = self._fire(offsets, now_ms)
        except (StorageFull, Damaged) as error:
            self._timers.give_back(offsets)
            self._note_problem(error)
            return False
        self._timers.give_back(offsets[written:])
        self.problem = None
        self._fit_slice(self._clock.monotonic_ms() - begun_ms)
        return self._timers.is_due(now_ms)

    def _fit_slice(self, took_ms: int) -> None:
        if took_ms > 2 * SLICE_MS:
            self._slice_rows = max(SLICE_ROWS_MIN, self._slice_rows // 2)
        elif took_ms < SLICE_MS:
            self._slice_rows = min(self._rows_max, 2 * self._slice_rows)

    def expect(self, due_ms: Int64s) -> None:
        """Take note of due times that were not known before."""
        self._unread += int(np.count_nonzero(due_ms < self._read_until_ms))

    async def read_ahead(self) -> None:
        """Read what fires next, with pauses, unless enough of it is here."""
        async with self._reading:
            now_ms = self._clock.now_ms()
            is_little = self._unread < MISSES_MAX and not self.is_surprised
            # Much at once: the more messages are read together, the more of them share a frame.
            if not is_little or now_ms + AHEAD_MS // 2 >= self._read_until_ms:
                self._ahead.misses = self._unread = 0
                offsets = self._timers.soon(now_ms, AHEAD_MS, ROWS_MAX)
                self._read_until_ms = now_ms + (AHEAD_MS if len(offsets) < ROWS_MAX else 0)
                await self._ahead.read(offsets)

    @property
    def is_surprised(self) -> bool:
        """Much is fired that was not read ahead: after a restart, or a clock that was set."""
        return self._ahead.misses >= MISSES_MAX

    def _fire(self, offsets: Int64s, now_ms: int) -> int:
        """Write what is due; return how many of the first were dealt with."""
        offsets = offsets[: self._ahead.affordable(offsets)]
        due_ms = self._timers.due_of(offsets)
        scheduled = scheduled_rows(self._ahead.rows(offsets), offsets, bytes_max=FIRE_BYTES_MAX)
        count = len(scheduled.offsets)
        due_ms = due_ms[:count]
        scheduled = scheduled.due_at(due_ms)
        if scheduled.may_expire:
            expires = expires_ms(scheduled.rows)
            is_over = (expires > 0) & (expires <= now_ms)
            if is_over.any():
                self._expire(scheduled.offsets[is_over], now_ms)
                scheduled, due_ms = scheduled.select(~is_over), due_ms[~is_over]
        if len(scheduled.offsets):
            self._write(scheduled, due_ms, now_ms)
        self._request_flush()
        return count

    def _expire(self, offsets: Int64s, now_ms: int) -> None:
        self._store.cancel(offsets, now_ms=now_ms, has_expired=True)
        self._timers.retire(offsets)
        self._counters.expired += len(offsets)

    def _write(self, scheduled: ScheduledRows, due_ms: Int64s, now_ms: int) -> None:
        self._store.fire(scheduled, now_ms=now_ms)
        self._timers.retire(scheduled.offsets)
        self._counters.fired += len(due_ms)
        fired_ms = self._clock.now_ms()
        _observe(self._counters.lateness_ms, fired_ms - due_ms)
        if self.spans is not None:
            self.spans.fired(scheduled.rows, due_ms, fired_ms)

    def _note_problem(self, error: StorageError) -> None:
        if self.problem is None:
            log.warning("firing_held reason=%s pending=%d", error, len(self._timers))
        self.problem = str(error)


def _observe(histogram: Histogram, lateness_ms: Int64s) -> None:
    edges = np.searchsorted(histogram.bounds, lateness_ms)
    counts = np.bincount(edges, minlength=len(histogram.counts))
    histogram.add(counts.tolist(), float(lateness_ms.sum()))
