"""The flush queues of a node, stepped together: in each turn of its loop all that wish it.

A batch over a thousand partitions leaves a little in many logs, and what is done for each of them
is the price of a message. So the fsyncs that these queues begin in one turn are handed to the
threads as one round, and what has ended meanwhile comes back as one call to the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from waterclock.storage.fsyncs import FsyncThreads, Sync


class Stepped(Protocol):
    """A flush queue, as seen from here."""

    def begin(self) -> Sync | None:
        """Return the fsync to be run now, if there is one."""
        ...

    def finish(self, sync: Sync, error: Exception | None, seconds: float) -> None:
        """Hear how it ended."""
        ...


class FlushTurns:
    """Steps what belongs to one loop. Only `call_threadsafe` may be called elsewhere."""

    def __init__(self, fsyncs: FsyncThreads) -> None:
        self._fsyncs = fsyncs
        self._due: deque[Stepped] = deque()
        self._begun: dict[Sync, Stepped] = {}
        self._ended: deque[tuple[Sync, Exception | None, float]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False

    def call_soon(self, loop: asyncio.AbstractEventLoop, queue: Stepped) -> None:
        """Have a queue begin what is due, with all others of this turn; the same loop each time."""
        self._due.append(queue)
        if not self._is_set:
            self._loop = loop
            self._set(loop.call_soon)

    def call_threadsafe(self, loop: asyncio.AbstractEventLoop, queue: Stepped) -> None:
        """The same, from any thread."""
        self._due.append(queue)
        if not self._is_set:
            self._loop = loop
            self._set(loop.call_soon_threadsafe)

    def _set(self, call: Callable[..., object]) -> None:
        self._is_set = True
        try:
            call(self._turn)
        except RuntimeError:
            self._is_set = False  # the loop was closed
            raise

    def _turn(self) -> None:
        begun: list[Sync] = []
        try:
            try:
                self._finish_ended()
            finally:
                self._is_set = False  # what comes from now on is for the next turn
            self._begin_due(begun)
        finally:
            if begun:
                self._fsyncs.submit(begun, self._fsynced)
            # Also if one has raised: the others are stepped all the same.
            if (self._due or self._ended) and not self._is_set:
                assert self._loop is not None
                self._set(self._loop.call_soon)

    def _finish_ended(self) -> None:
        ended, begun = self._ended, self._begun
        while ended:
            sync, error, seconds = ended.popleft()
            begun.pop(sync).finish(sync, error, seconds)

    def _begin_due(self, begun: list[Sync]) -> None:
        due, owners = self._due, self._begun
        for _ in range(len(due)):
            queue = due.popleft()
            sync = queue.begin()
            if sync is not None:
                owners[sync] = queue
                begun.append(sync)

    def _fsynced(
        self, syncs: Sequence[Sync], errors: Sequence[Exception | None], seconds: float
    ) -> None:
        """On a thread: have the loop finish them."""
        self._ended.extend(zip(syncs, errors, [seconds] * len(syncs), strict=True))
        if not self._is_set:
            assert self._loop is not None
            # A loop that was closed meanwhile needs no waking.
            with suppress(RuntimeError):
                self._set(self._loop.call_soon_threadsafe)
