"""The way of a group's dead messages into the dead letter topic.

A message is dying from the moment the cursor says so, also over a restart, and done only when its
dead letter is durable. Writing it again is harmless: its id says whose it is, and the topic knows
its ids. So whatever goes wrong here (the disk is full, the topic is damaged, the node dies) is
answered by trying again, later; what dies meanwhile of other partitions goes first.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import NamedTuple, Protocol

from waterclock.delivery.events import DeadLetter
from waterclock.model.errors import StorageFailed, WaterclockError
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.groups.session import Session

RETRY_S = 1.0
RETRY_S_MAX = 30.0
WRITTEN_S = 10.0
"""Whoever waits for dead letters is answered after so long, written or not."""

log = logging.getLogger("waterclock.delivery")


class DeadLetterSink(Protocol):
    """Who writes dead letters: `DeadLetters`, or a test's."""

    async def write_dead_letters(
        self, place: GroupPartition, group: str, letter: DeadLetter
    ) -> None:
        """Write dead messages to the dead letter topic; they are durable on return."""
        ...


class Dead(NamedTuple):
    """Messages of a place that have to be written."""

    place: GroupPartition
    letter: DeadLetter
    owner: Session | None
    """Who had the partition when they died."""

    @property
    def messages(self) -> int:
        """How many messages these are."""
        return sum(end - start for start, end in self.letter.ranges)


class DeadLetterWriter:
    """The dead of one group that have not been written."""

    def __init__(self, group: str, grave: DeadLetterSink) -> None:
        self._group = group
        self._grave = grave
        self._line: deque[Dead] = deque()
        self._moved = asyncio.Event()
        """Set, and replaced, whenever the line has become shorter."""

    def __len__(self) -> int:
        return len(self._line)

    def add(self, place: GroupPartition, letter: DeadLetter) -> None:
        """Put messages in line to be written by `next`."""
        self._line.append(Dead(place, letter, place.session))

    def end(self) -> None:
        """Write no more; what was not written is remembered with the progress."""
        self._line.clear()
        self._tell_moved()

    async def written(self, owner: Session) -> int:
        """Return 0 once what died in these hands is written, or will not be because all has ended.
        After `WRITTEN_S`, return how many messages still wait for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_S):
                while any(dead.owner is owner for dead in self._line):
                    await self._moved.wait()
        count = sum(dead.messages for dead in self._line if dead.owner is owner)
        if count:
            log.warning(
                "left_before_dead_letters group=%s member=%s messages=%d",
                self._group,
                owner.member,
                count,
            )
        return count

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def next(self) -> Dead | None:
        """Write those in front; return them, or None if nobody wants to know any more."""
        delay_s = RETRY_S
        while self._line:
            dead = self._line[0]
            try:
                await self._grave.write_dead_letters(dead.place, self._group, dead.letter)
            except StorageFailed:
                raise  # the node has come to its end
            except WaterclockError as error:
                log.warning("dead_letters_wait place=%r error=%s", dead.place, error)
                self._line.rotate(-1)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
                continue
            if dead not in self._line:
                return None
            self._line.remove(dead)
            self._tell_moved()
            return dead
        return None
