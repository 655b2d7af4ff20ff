"""Clients of stored streams in a round: one stores into each, one reads on by its resume token.

A stream is judged as a partition is: a position is an offset, and what was acknowledged is there at
the position that was told, once, for everybody. Nodes keep streams in `__streams`, which is
replicated as topics are.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tests.cluster.chaos.requests import Answer
from tests.cluster.chaos.topics.record import STREAM, RoundRecord, RunClock
from tests.cluster.history.events import Polled, Published, Row

AGAIN_S = 0.05
WAIT = "300ms"
PAGE = 100
NONE_YET = 424
TRIES_MAX = 20

Ask = Callable[[str, str, object], Awaitable[Answer | None]]
"""Method, path and words; None if there was no answer."""


class StoredStreams:
    """The streams of a round. `asked` asks some node once, `until_known` until it is done."""

    def __init__(
        self, record: RoundRecord, clock: RunClock, prefix: str, asked: Ask, until_known: Ask
    ) -> None:
        plan = record.plan
        self._record = record
        self._clock = clock
        self._asked = asked
        self._until_known = until_known
        self._rng = Random(f"{plan.seed}:{plan.number}:streams")
        self._numbers = itertools.count(1)
        self.names = [f"{prefix}-{number}" for number in range(plan.streams)]

    async def store(self, name: str, is_on: Callable[[], bool]) -> None:
        """Store one message after the other, each until somebody says where it is."""
        while is_on():
            message, at_ms = f"s{next(self._numbers)}", self._clock.now_ms()
            words = {"streamId": name, "message": message, "messageUuid": message}
            answer = await self._until_known("POST", "/streams/sendAndStore", words)
            asked = Published(message, STREAM + name, at_ms, None, "unknown")
            if answer is None:  # the round ended before
                self._record.events.append(asked)
                return
            until_ms, position = self._clock.now_ms(), int(answer.value["position"])
            self._record.counts["stored"] += 1
            self._record.events.append(
                Published(message, asked.partition, at_ms, until_ms, "acked", position)
            )
            await asyncio.sleep(self._record.plan.pause_ms / 1_000 * self._rng.uniform(0.2, 1.8))

    async def read_on(self, name: str, is_over: Callable[[], bool]) -> None:
        """Read what comes, and go on where the last answer ended."""
        token, position = "earliest", 1
        while not is_over():
            answer = await self._page(name, token, WAIT)
            if answer is None or answer.status != 200:
                await asyncio.sleep(AGAIN_S)
                continue
            token = answer.value["resumeToken"]
            position = self._note("stream reader", name, position, answer.value["messages"])

    async def read_all(self) -> None:
        """Read all streams from their beginning; whoever is asked has all that was acknowledged."""
        for name in self.names:
            token, position, tries = "earliest", 1, 0
            while tries < TRIES_MAX:
                answer = await self._page(name, token, "10ms")
                if answer is not None and answer.status == NONE_YET:
                    break
                if answer is None or answer.status != 200:
                    tries += 1
                    await asyncio.sleep(AGAIN_S * 4)
                    continue
                token = answer.value["resumeToken"]
                position = self._note("last reader", name, position, answer.value["messages"])

    async def _page(self, name: str, token: str, wait: str) -> Answer | None:
        query = f"streamId={name}&resumeToken={token}&limit={PAGE}&timeout={wait}"
        return await self._asked("GET", f"/streams/receive?{query}", None)

    def _note(self, reader: str, name: str, position: int, found: list[dict[str, Any]]) -> int:
        """Note what a reader was given from a position on; return where it goes on."""
        rows = tuple(Row(each["position"], "data", each["messageUuid"]) for each in found)
        end = rows[-1].offset + 1
        self._record.events.append(
            Polled(reader, "any", STREAM + name, self._clock.now_ms(), position, end, rows)
        )
        return end
