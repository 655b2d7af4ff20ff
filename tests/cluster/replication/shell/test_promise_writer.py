"""Promises are written on a thread, which nobody may close the folder under."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from waterclock.model.ids import Epoch
from waterclock.server.cluster.replication.promise_writer import PromiseWriter
from waterclock.storage.promises import KeptPromise

LOG_ID = b"l" * 16


class SlowPromises:
    """Promises on a disk that takes its time."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.saved: list[bytes] = []

    def save(self, promises: Mapping[bytes, KeptPromise]) -> None:
        self.begun.set()
        self.may_end.wait()
        self.saved += promises


async def test_a_writer_that_is_stopped_ends_when_its_write_has():
    promises: Any = SlowPromises()
    answered: list[bytes] = []
    writer = PromiseWriter(promises, lambda log_id, epoch: answered.append(log_id))
    writer.save(LOG_ID, Epoch(1), "a")
    running = asyncio.ensure_future(writer.run())
    try:
        await asyncio.to_thread(promises.begun.wait)
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
    finally:
        promises.may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert (promises.saved, answered) == ([LOG_ID], [])
