"""What a node had stored while it was alone: brought into `__streams`, once, by that node.

The leader of the records says whether there is something to bring: the node that forms a cluster
leads them before any other does, and it is the one that had topics and streams before. As long as
it has not brought all of it, nobody stores anything: streams go on behind what they had, and keep
their positions. Rows that were brought before are known by their positions, so a node that stops
half-way begins anew. The old log stays, put aside.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from waterclock.log.schema import decode
from waterclock.log.segment import SUFFIX
from waterclock.model.units import MIB
from waterclock.node.metadata import Metadata
from waterclock.stores.log.rows import Row, rows_of
from waterclock.stores.log.store import LogStore

ORIGIN = "streams/origin"
"""The record that says who has streams to bring."""
ASIDE = "-of-one-node"
BATCH_BYTES = 4 * MIB


class _Origin(msgspec.Struct, frozen=True):
    node: str
    """Empty: all there was is brought, or there was nothing."""


class StreamsOrigin:
    """Knows whether streams may be stored, or who has streams to bring before."""

    def __init__(self, metadata: Metadata, name: str, folder: Path) -> None:
        """`folder` is where the node of that name stores streams when it is alone."""
        self.metadata = metadata
        self._name = name
        self._folder = folder
        self._changed = asyncio.Event()
        self.node: str | None = None
        """Who has streams to bring; empty: nobody; None: that is not known yet."""
        self._committed(ORIGIN, metadata.get(ORIGIN))
        metadata.on_committed(ORIGIN, self._committed)

    def __repr__(self) -> str:
        return f"<StreamsOrigin {self.node!r}>"

    @property
    def is_here(self) -> bool:
        """This node has streams to bring."""
        return self.node == self._name

    @property
    def is_left_behind(self) -> bool:
        """This node has streams that nobody asks for: it came to others that had their own."""
        return not self.is_here and _has_log(self._folder)

    def _committed(self, name: str, value: bytes | None) -> None:
        if value is not None:
            self.node = msgspec.json.decode(value, type=_Origin).node
            self._changed.set()
            self._changed = asyncio.Event()

    async def known(self) -> str:
        """Return who has streams to bring, once somebody has said so."""
        while self.node is None:
            await self._changed.wait()
        return self.node

    async def decide(self) -> None:
        """Say whether this node has streams to bring, unless it was said. Call it on the leader of
        the records."""
        if self.metadata.get(ORIGIN) is None:
            await self._say(self._name if _has_log(self._folder) else "")

    async def brought_over(self, node: str) -> None:
        """Take note that a node has brought all it had; raises NotLeader unless this one leads."""
        if self.node == node:
            await self._say("")

    async def _say(self, node: str) -> None:
        await self.metadata.put(ORIGIN, msgspec.json.encode(_Origin(node)))

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Yield all rows of the old log, in order, and put it aside when they are taken."""
        if not _has_log(self._folder):
            return  # it was put aside before
        old = LogStore(self._folder)
        await old.open()
        try:
            batch: list[Row] = []
            size = 0
            for frame in old.log.frames(old.log.start):
                if frame.header.is_deliverable:
                    batch += rows_of(decode(frame.header, frame.body))
                    size += len(frame.body)
                if size >= BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch
        finally:
            await old.close()
        self._folder.rename(self._folder.with_name(self._folder.name + ASIDE))


def _has_log(folder: Path) -> bool:
    return folder.is_dir() and any(each.suffix == SUFFIX for each in folder.iterdir())
