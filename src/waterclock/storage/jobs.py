"""Work for the background: saving a segment's side-cars and the recovery point.

A store hands out jobs; its owner runs them one at a time and in order, inline or on a thread.
`run` touches only what does not change any more. A job that fails for want of space is dropped: all
it would have saved is time.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from waterclock.log.id_index.runs import IdEntries, IdPieces, IdRun
from waterclock.log.sidecars.due import DueDelta, NetDelta
from waterclock.log.sidecars.sidecar import Coverage
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.errors import StorageFull
from waterclock.storage.folders import memory
from waterclock.storage.recovery_point import save_recovery_point
from waterclock.storage.sidecar_files import load_due, load_ids, save_sidecars

if TYPE_CHECKING:
    from waterclock.storage.partition_store import PartitionStore


class Work(Protocol):
    """Something to be run on a thread of its own."""

    def run(self) -> None: ...


class Ended(NamedTuple):
    """Work that was run."""

    work: Work
    error: Exception | None
    seconds: float


class Threads:
    """Threads that run what they are handed, `count` at once; started when first needed."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = name
        self._count = count
        self._todo: SimpleQueue[tuple[Work, Callable[[Ended], None]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._lock = threading.Lock()

    def submit(self, work: Work, on_end: Callable[[Ended], None]) -> None:
        """Run it, then call `on_end`, both on one of the threads."""
        with self._lock:
            self._waiting += 1
            if self._waiting > len(self._threads) and len(self._threads) < self._count:
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._todo.put((work, on_end))

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    def _loop(self) -> None:
        while (task := self._todo.get()) is not None:
            work, on_end = task
            error: Exception | None = None
            begun = time.perf_counter()
            try:
                work.run()
            # Any error: an owner would wait for ever for a thread that has died.
            except Exception as failure:
                error = failure
            with self._lock:
                self._waiting -= 1
            on_end(Ended(work, error, time.perf_counter() - begun))
            del task, work, on_end  # what was saved may be large, and the next wait long


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a segment's side-cars shall hold, as of one moment at which all of it was durable."""

    coverage: Coverage
    index: SparseIndex
    ids: IdPieces | None
    due: DueDelta
    """Frozen: its net is taken in the background, as it may be large."""


class SaveJob:
    """Save side-cars, then how far the log was durable when this was made."""

    def __init__(self, store: "PartitionStore", snapshot: Snapshot, *, is_sealed: bool) -> None:
        self._store = store
        self._snapshot = snapshot
        self._is_sealed = is_sealed
        self._flushed_end = store.flushed_end
        self._ids: IdEntries | None = None
        self._run: IdRun | None = None
        self._due: NetDelta | None = None
        self._mutex = threading.Lock()
        self._is_saved = False

    def __repr__(self) -> str:
        return f"<SaveJob of segment {self._snapshot.coverage.base_offset}>"

    @property
    def base_offset(self) -> int:
        """Which segment it is about."""
        return self._snapshot.coverage.base_offset

    def run(self) -> None:
        """Write the files; may run on another thread. Whoever is second waits for the first."""
        with self._mutex:
            if not self._is_saved:
                self._save()
                self._is_saved = True

    def _save(self) -> None:
        snapshot, folder = self._snapshot, self._store.folder
        assert snapshot.coverage.end_offset <= self._flushed_end
        self._ids = None if snapshot.ids is None else snapshot.ids.merged()
        with suppress(StorageFull):
            due = snapshot.due.net()
            save_sidecars(folder, snapshot.coverage, index=snapshot.index, ids=self._ids, due=due)
            save_recovery_point(folder, self._flushed_end)
            if self._is_sealed:
                self._map_what_was_saved()

    def _map_what_was_saved(self) -> None:
        """Take the files' pages instead of memory of our own: a sealed segment is seldom asked."""
        folder, coverage = self._store.folder, self._snapshot.coverage
        self._due = load_due(folder, coverage)
        if self._due is not None:
            memory.release_pages(self._due.opened)
        if self._ids is not None:
            mapped = load_ids(folder, coverage)
            if mapped is not None:
                self._ids = mapped
            # Here, not by the owner: it looks at every page, and takes tens of milliseconds.
            self._run = IdRun(self._ids.tracked)
            memory.release_pages(self._ids.tracked)

    def finish(self) -> None:
        """Let the index use the merged ids, and the store the mapped timers; by the owner."""
        ids, deltas = self._store.ids, self._store.deltas
        base = self._snapshot.coverage.base_offset
        if self._is_sealed and ids is not None and self._ids is not None:
            run = self._ids.tracked if self._run is None else self._run
            ids.replace(base, run, self._ids.untracked)
        # Unless the segment was rewritten, or went, in the meantime.
        if self._due is not None and deltas.get(base) is self._snapshot.due.net():
            deltas[base] = self._due
