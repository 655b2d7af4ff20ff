"""The way of a group's dead messages into the dead letter topic.

A message is dead from the moment the cursor says so, also over a restart, and done only when its
dead letter is durable. Writing it again is harmless: its id says whose it is, and the topic knows
its ids. So whatever goes wrong here (the disk is full, the topic is damaged, the node dies) is
answered by trying again, later; dead messages of other partitions go first meanwhile.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from waterclock.delivery.events import WriteDeadLetters
from waterclock.model.errors import StorageFailed, WaterclockError
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.groups.session import Session

RETRY_S = 1.0
RETRY_S_MAX = 30.0
WRITTEN_S = 10.0
"""`wait_written` returns after so long, written or not."""

log = logging.getLogger("waterclock.delivery")


class UnwrittenDeadLetters(NamedTuple):
    """Dead messages of a partition that have to be written."""

    partition: GroupPartition
    effect: WriteDeadLetters
    owner: Session | None
    """Whose session had the partition when they were declared dead."""

    @property
    def messages(self) -> int:
        """How many messages these are."""
        return sum(end - start for start, end in self.effect.ranges)


class DeadLetterWriter:
    """The dead messages of one group that have not been written."""

    def __init__(self, group: str, dead_letters: DeadLetters) -> None:
        self._group = group
        self._dead_letters = dead_letters
        self._queue: deque[UnwrittenDeadLetters] = deque()
        self._shortened = asyncio.Event()
        """Set, and replaced, whenever the queue has become shorter."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, partition: GroupPartition, effect: WriteDeadLetters) -> None:
        """Queue messages to be written by `write_next`."""
        self._queue.append(UnwrittenDeadLetters(partition, effect, partition.session))

    def stop(self) -> None:
        """Write no more; what was not written is remembered with the progress."""
        self._queue.clear()
        self._note_shortened()

    async def wait_written(self, owner: Session) -> int:
        """Return 0 once what a session's member failed at is written, or will not be because the
        group has ended. After `WRITTEN_S`, return how many messages are not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_S):
                while any(dead.owner is owner for dead in self._queue):
                    await self._shortened.wait()
        count = sum(dead.messages for dead in self._queue if dead.owner is owner)
        if count:
            log.warning(
                "left_before_dead_letters group=%s member=%s messages=%d",
                self._group,
                owner.member,
                count,
            )
        return count

    def _note_shortened(self) -> None:
        self._shortened.set()
        self._shortened = asyncio.Event()

    async def write_next(self) -> UnwrittenDeadLetters | None:
        """Write those in front; return them, or None if the writer was stopped meanwhile."""
        delay_s = RETRY_S
        while self._queue:
            dead = self._queue[0]
            try:
                await self._dead_letters.write_dead_letters(
                    dead.partition, self._group, dead.effect
                )
            except StorageFailed:
                raise  # the node has come to its end
            except WaterclockError as error:
                log.warning("dead_letters_wait partition=%r error=%s", dead.partition, error)
                self._queue.rotate(-1)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
                continue
            if dead not in self._queue:
                return None
            self._queue.remove(dead)
            self._note_shortened()
            return dead
        return None
