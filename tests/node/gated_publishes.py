"""A gate before all partitions: what is published is held up until a test lets it through."""

import asyncio
from typing import Any

import pytest

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.node.partition.host import PartitionHost


class GatedPublishes:
    """Holds batches up, and knows how large those were that came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self.counts: list[int] = []
        self._came = asyncio.Event()
        publish = PartitionHost.publish

        async def gated(host: PartitionHost, batch: Batch, **more: Any) -> Appended:
            self.counts.append(batch.count)
            self._came.set()
            await self.gate.wait()
            return await publish(host, batch, **more)

        monkeypatch.setattr(PartitionHost, "publish", gated)

    async def came(self, *counts: int) -> None:
        """Return once these batches have come, and fail if others did."""
        while len(self.counts) < len(counts):
            self._came.clear()
            await self._came.wait()
        assert self.counts == [*counts]
