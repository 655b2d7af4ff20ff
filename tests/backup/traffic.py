"""Everyone who uses a node that is backed up, and what the node has answered them, by when.

There is a little of everything that a backup must have: messages for now and for later, cancels
and moves, a group that acks and rejects, redrives, topics made and deleted, recurrences, stored
streams.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

from waterclock.client.client import Client
from waterclock.client.results import Receipt
from waterclock.model.errors import NotFound, WaterclockError

TOPIC = "work"
PARTITIONS = 3
GROUP = "readers"
STREAM = "tokens"
ALIVE_MAX = 8
"""Topics and recurrences beyond that are deleted again."""
WORK_S = 0.008
"""How long a consumer takes for a message."""
LATER = timedelta(hours=6)
"""Too far ahead to fire in a test."""


def due_in(ahead: timedelta) -> datetime:
    """Return a time, to the millisecond."""
    at = datetime.now(UTC) + ahead
    return at.replace(microsecond=at.microsecond // 1_000 * 1_000)


@dataclass(slots=True)
class Fact:
    """Something that was asked of the node; not known to be so before `answered`."""

    asked: float
    answered: float = float("inf")

    def is_sure(self, by: float) -> bool:
        """It was acknowledged before then, so it must be in a backup begun then."""
        return self.answered < by


@dataclass(slots=True)
class Sent(Fact):
    """A message."""

    message_id: bytes = b""
    receipt: Receipt | None = None
    dues: list[tuple[Fact, datetime]] = field(default_factory=list)
    """The due times it was given, if it was for much later."""
    cancel: Fact | None = None
    """Asked for; answered if the node said that it was cancelled."""


@dataclass(slots=True)
class Named(Fact):
    """A topic or a recurrence."""

    ending: Fact | None = None
    """Deleting it was asked for."""


@dataclass
class Journal:
    """All facts."""

    sent: list[Sent] = field(default_factory=list)
    topics: dict[str, Named] = field(default_factory=dict)
    recurrences: dict[str, Named] = field(default_factory=dict)
    stored: dict[str, tuple[Fact, int]] = field(default_factory=dict)
    """Messages of the stream, with their positions."""
    acked: set[tuple[int, int]] = field(default_factory=set)
    """Partitions and offsets that the group was done with, sure or not."""


class Traffic:
    """Uses a node until it is cancelled, or the node is gone."""

    def __init__(self, client: Client, rng: Random) -> None:
        self.journal = Journal()
        self._client = client
        self._rng = rng
        self._numbers = count()
        self._answered = asyncio.Semaphore(0)

    async def prepare(self) -> None:
        """Make what all share."""
        await self._client.topics.create(TOPIC, partitions=PARTITIONS)

    def start(self, tasks: asyncio.TaskGroup) -> list["asyncio.Task[None]"]:
        """Begin, with a few of each kind."""
        steps = [self._publish] * 3 + [
            self._change_pending, self._change_topics, self._change_recurrences, self._store,
            self._redrive,
        ]  # fmt: skip
        return [
            *(tasks.create_task(self._again_and_again(step)) for step in steps),
            tasks.create_task(self._consume()),
        ]

    async def published(self, messages: int) -> None:
        """Return when the node has acknowledged so many more."""
        for _ in range(messages):
            await self._answered.acquire()

    async def _again_and_again(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await step()
                await asyncio.sleep(self._rng.uniform(0, 0.02))
        except NotFound:
            raise
        except WaterclockError:
            return  # the node was killed: what it did not answer is not sure

    def _name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    async def _publish(self) -> None:
        rng = self._rng
        sent = Sent(time.monotonic(), message_id=self._name("message").encode())
        at: datetime | None = None
        if rng.random() < 0.3:
            at = due_in(LATER + timedelta(seconds=rng.randrange(1_000)))
            sent.dues.append((sent, at))
        elif rng.random() < 0.3:
            at = due_in(timedelta(milliseconds=rng.randrange(400)))
        self.journal.sent.append(sent)
        key = b"key-%d" % rng.randrange(9)
        value = b"." * rng.randrange(400)
        sent.receipt = await self._client.publish(
            TOPIC, value, key=key, at=at, message_id=sent.message_id
        )
        sent.answered = time.monotonic()
        self._answered.release()

    async def _change_pending(self) -> None:
        """Cancel or move something that is for much later."""
        pending = [s for s in self.journal.sent[-200:] if s.dues and s.receipt and not s.cancel]
        if not pending:
            return
        sent = self._rng.choice(pending)
        assert sent.receipt is not None
        asked = Fact(time.monotonic())
        if self._rng.random() < 0.5:
            sent.cancel = asked
            said = await self._client.cancel(TOPIC, sent.receipt)
            assert said == "cancelled", said
        else:
            at = due_in(LATER + timedelta(seconds=self._rng.randrange(1_000)))
            sent.dues.append((asked, at))
            said = await self._client.reschedule(TOPIC, sent.receipt, at)
            assert said == "moved", said
        asked.answered = time.monotonic()

    async def _change_topics(self) -> None:
        """Make a topic with a message in it; delete one now and then."""
        topics = self.journal.topics
        name = self._name("topic")
        topics[name] = Named(time.monotonic())
        await self._client.publish(name, b"first")
        topics[name].answered = time.monotonic()
        alive = [name for name, topic in topics.items() if topic.ending is None]
        if len(alive) > ALIVE_MAX:
            await self._end(topics[alive[0]], self._client.topics.delete(alive[0]))

    async def _change_recurrences(self) -> None:
        recurrences = self.journal.recurrences
        name = self._name("recurrence")
        recurrences[name] = Named(time.monotonic())
        await self._client.repeat(name, TOPIC, b"again", every="12h", start=due_in(LATER))
        recurrences[name].answered = time.monotonic()
        alive = [name for name, each in recurrences.items() if each.ending is None]
        if len(alive) > ALIVE_MAX:
            await self._end(recurrences[alive[0]], self._client.stop_repeating(alive[0]))

    async def _end(self, named: Named, ending: Awaitable[object]) -> None:
        named.ending = Fact(time.monotonic())
        await ending
        named.ending.answered = time.monotonic()

    async def _store(self) -> None:
        asked = Fact(time.monotonic())
        message = self._name("token")
        at = await self._client.streams.send_and_store(STREAM, message, message_id=message)
        asked.answered = time.monotonic()
        self.journal.stored[message] = asked, at.position

    async def _redrive(self) -> None:
        # Now and then: a backup finds some dead letters still open.
        await asyncio.sleep(self._rng.uniform(0.1, 0.3))
        await self._client.dead_letters.redrive(TOPIC)

    async def _consume(self) -> None:
        """Ack most of what comes, and reject some."""
        try:
            async with self._client.subscribe(TOPIC, group=GROUP, prefetch=50) as messages:
                async for message in messages:
                    # Slower than messages come: a backup finds some that nobody has answered.
                    await asyncio.sleep(WORK_S)
                    if self._rng.random() < 0.2:
                        message.reject()
                    else:
                        # Before it is sent: afterwards, the node may know and we may not.
                        self.journal.acked.add((message.partition, message.offset))
                        message.ack()
        except WaterclockError:
            return
