"""Watches over the node's disk: is there room, and is the data folder still the one it was.

Whoever finds no room says so here, once for the whole node, and that holds until an attempt to
reserve some has succeeded. It is not left to the next publish to find out: a client that is told
that a node is not ready sends it none.

A data folder that was deleted or moved under the node ends it, like a failed disk: its open files
go on taking messages that nobody will ever find. A file that was deleted is noticed by the fsync
before its next acknowledgement (`storage/folders/os_folder.py`); the folders are looked at here.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from waterclock.model.clock import Clock
from waterclock.model.errors import StorageError, StorageFailed, WaterclockError
from waterclock.model.ids import Millis
from waterclock.storage.folders.data_folder import DataFolder, DiskSpace

LOOK_S = 1.0

log = logging.getLogger(__name__)


class Shortage(NamedTuple):
    """Why nothing can be written."""

    reason: str
    since_ms: Millis


class DiskWatch:
    """What is known of the disk. `run` must be running."""

    def __init__(
        self, folder: DataFolder, clock: Clock, on_failed: Callable[[WaterclockError], None]
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._on_failed = on_failed
        self._unseen: str | None = None
        self.shortage: Shortage | None = None
        """Set while the disk is full."""

    def __repr__(self) -> str:
        return f"<DiskWatch {self.shortage or 'all well'}>"

    def note_full(self, error: StorageError) -> None:
        """Take note that there was no room for something."""
        if self.shortage is None:
            log.warning("disk_full reason=%s", error)
            self.shortage = Shortage(str(error), self._clock.now_ms())

    def _note_unseen(self, reason: str | None) -> None:
        """Say once that nobody can tell whether the folder is there; it is looked at again."""
        if reason is not None and reason != self._unseen:
            log.warning("data_folder_unseen reason=%s", reason)
        self._unseen = reason

    async def space(self) -> DiskSpace | None:
        """Return what the disk has, None if that cannot be told at the moment."""
        return await asyncio.to_thread(self._folder.space)

    async def run(self) -> None:
        """Look again and again until cancelled, or until the folder is gone."""
        while True:
            if not await self.look():
                return
            await asyncio.sleep(LOOK_S)

    async def look(self) -> bool:
        """Look once; tell whether there is any use in looking again."""
        try:
            self._note_unseen(await asyncio.to_thread(self._folder.check))
        except StorageFailed as error:
            log.error("data_folder_gone reason=%s", error)
            self._on_failed(error)
            return False
        full = self.shortage
        if full is not None and await asyncio.to_thread(self._folder.shortage) is None:
            log.info("disk_has_room full_s=%g", (self._clock.now_ms() - full.since_ms) / 1_000)
            self.shortage = None
        return True
