"""The fake coordinator as coroutines, in real time: several clients that live long share it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from waterclock.cluster.coordinator.fake import FakeCoordinator
from waterclock.cluster.coordinator.questions import (
    Grant,
    KeepAlive,
    Outcome,
    Question,
    Read,
    Revoke,
    Watch,
)
from waterclock.cluster.coordinator.requests import (
    KeyRange,
    Lease,
    LeaseId,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    WatchBatch,
)


async def until(holds: Callable[[], object]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - it is about the insides of what runs
            await asyncio.sleep(0.001)


class LiveCoordinator:
    """A store in this process. Call `poke` after you changed the fake."""

    def __init__(self, seed: int = 0) -> None:
        self.fake = FakeCoordinator(Random(seed))
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()
        self._waits: dict[tuple[str, int], asyncio.Queue[Outcome]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def client(self, name: str) -> "LiveClient":
        return LiveClient(self, name)

    def ask(self, client: str, number: int, question: Question) -> asyncio.Queue[Outcome]:
        answers: asyncio.Queue[Outcome] = asyncio.Queue()
        self._waits[client, number] = answers
        self.poke()
        self.fake.ask(client, number, question)
        self.poke()
        return answers

    def forget(self, client: str, number: int) -> None:
        self._waits.pop((client, number), None)

    def poke(self) -> None:
        """Let time pass up to now, and come back when something happens next."""
        now_ms = round((self._loop.time() - self._begun_s) * 1_000)
        for client, number, outcome in self.fake.tick(now_ms):
            if (client, number) in self._waits:
                self._waits[client, number].put_nowait(outcome)
        if self._timer is not None:
            self._timer.cancel()
        deadline_ms = self.fake.next_deadline()
        if deadline_ms is not None:
            wait_s = max(0, deadline_ms - now_ms) / 1_000
            self._timer = self._loop.call_later(wait_s, self.poke)


class LiveClient:
    """A client of it."""

    def __init__(self, live: LiveCoordinator, name: str) -> None:
        self._live = live
        self._name = name
        self._number = 0

    async def read(self, keys: KeyRange) -> RangeResult:
        return await self._answer(Read(keys))  # type: ignore[no-any-return]

    async def write(self, txn: Txn) -> TxnResult:
        return await self._answer(txn)  # type: ignore[no-any-return]

    async def grant(self, ttl_s: int) -> Lease:
        return await self._answer(Grant(ttl_s))  # type: ignore[no-any-return]

    async def keep_alive(self, lease: LeaseId) -> Lease:
        return await self._answer(KeepAlive(lease))  # type: ignore[no-any-return]

    async def revoke(self, lease: LeaseId) -> None:
        await self._answer(Revoke(lease))

    @asynccontextmanager
    async def watch(
        self, keys: KeyRange, *, from_revision: Revision
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        number, answers = self._ask(Watch(keys, from_revision))

        async def batches() -> AsyncIterator[WatchBatch]:
            while True:
                yield raised(await answers.get())

        try:
            yield batches()
        finally:
            self._live.fake.end_watch(self._name, number)
            self._live.forget(self._name, number)

    def _ask(self, question: Question) -> tuple[int, asyncio.Queue[Outcome]]:
        self._number += 1
        return self._number, self._live.ask(self._name, self._number, question)

    async def _answer(self, question: Question) -> Any:
        number, answers = self._ask(question)
        try:
            return raised(await answers.get())
        finally:
            self._live.forget(self._name, number)


def raised(outcome: Outcome) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
