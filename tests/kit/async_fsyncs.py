"""Stand-ins for the kernel that runs fsyncs by itself; see `waterclock.storage.fsyncs.AsyncFsyncs`.

`SimulatedKernel` is for simulated disks: an fsync ends when the test says so, when somebody waits
for it, or never. `ThreadKernel` runs what a file's own `sync` does, on a thread: for disks that are
real and slow, or that fail.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.kit.disk import SimulatedFile
from waterclock.model.errors import Closed
from waterclock.storage.folders.folder import File


class SimulatedAsked:
    """An fsync that the simulated kernel was asked for."""

    def __init__(self, kernel: "SimulatedKernel", file: SimulatedFile) -> None:
        self._kernel = kernel
        self._file = file
        self._mark = file.begin_sync()
        self._error: Exception | None = None
        self.is_over = False

    def result(self) -> None:
        """End it, if it has not ended; raise what went wrong."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Have the disk answer."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self._file.end_sync(self._mark)
        except Exception as error:
            self._error = error
        self._kernel.ended_one(self)


class SimulatedKernel:
    """Runs fsyncs of simulated files."""

    def __init__(self) -> None:
        self.under_way: list[SimulatedAsked] = []
        self._ended: list[SimulatedAsked] = []
        self._tell: Callable[[], object] = lambda: None

    def begin(self, file: File) -> SimulatedAsked | None:
        """Note what the fsync covers."""
        assert isinstance(file, SimulatedFile)
        try:
            asked = SimulatedAsked(self, file)
        except Closed:
            return None
        self.under_way.append(asked)
        return asked

    def listen(self, loop: asyncio.AbstractEventLoop, on_ended: Callable[[], None]) -> None:
        self._tell = lambda: loop.call_soon(on_ended)

    def end_all(self) -> None:
        """Have the disk answer all there are."""
        for asked in tuple(self.under_way):
            asked.end()

    def ended_one(self, asked: SimulatedAsked) -> None:
        self.under_way.remove(asked)
        self._ended.append(asked)
        self._tell()

    def ended(self) -> Sequence[SimulatedAsked]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self.end_all()


class ThreadAsked:
    """An fsync that runs on a thread of its own."""

    def __init__(self, file: File, on_end: Callable[["ThreadAsked"], None]) -> None:
        self._file = file
        self._on_end = on_end
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with suppress(Closed):
                self._file.sync()
        except Exception as error:
            self._error = error
        self._on_end(self)

    def result(self) -> None:
        """Wait for it; raise what went wrong."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class ThreadKernel:
    """Runs what `sync` of any file does."""

    def __init__(self) -> None:
        self.count = 0
        """How many were begun."""
        self._under_way: set[ThreadAsked] = set()
        self._ended: deque[ThreadAsked] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._on_ended: Callable[[], None]

    def begin(self, file: File) -> ThreadAsked | None:
        self.count += 1
        asked = ThreadAsked(file, self._end)
        self._under_way.add(asked)
        return asked

    def listen(self, loop: asyncio.AbstractEventLoop, on_ended: Callable[[], None]) -> None:
        self._loop, self._on_ended = loop, on_ended

    def _end(self, asked: ThreadAsked) -> None:
        self._ended.append(asked)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._on_ended)

    def ended(self) -> Sequence[ThreadAsked]:
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        self._under_way.difference_update(ended)
        return ended

    def close(self) -> None:
        for asked in tuple(self._under_way):
            asked._thread.join()
