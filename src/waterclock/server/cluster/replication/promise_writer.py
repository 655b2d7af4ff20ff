"""Writes promises on a thread: those that come while one write is under way share the next."""

import asyncio
from collections.abc import Callable

from waterclock.model.ids import Epoch
from waterclock.storage.promises import NOTHING, KeptPromise, Promises


class PromiseWriter:
    """Makes promises durable. `run` it in a task; a failed write ends that task, and the node."""

    def __init__(self, promises: Promises, on_saved: Callable[[bytes, Epoch], None]) -> None:
        self._promises = promises
        self._on_saved = on_saved
        self._wanted: dict[bytes, KeptPromise] = {}
        self._is_wanted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PromiseWriter {len(self._wanted)} to write>"

    def save(self, log_id: bytes, epoch: Epoch, candidate: str) -> None:
        """Have a promise made; `on_saved` tells when it is durable."""
        wanted = KeptPromise(epoch, candidate)
        self._wanted[log_id] = self._wanted.get(log_id, NOTHING).renewed(wanted)
        self._is_wanted.set()

    async def run(self) -> None:
        """Write what is wanted, until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            wanted, self._wanted = self._wanted, {}
            await self._write(wanted)
            for log_id, kept in wanted.items():
                self._on_saved(log_id, kept.epoch)

    async def _write(self, wanted: dict[bytes, KeptPromise]) -> None:
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._promises.save, wanted)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, and whoever ends this closes the folder under it.
            await asyncio.wait([writing])
            writing.result()
            raise
