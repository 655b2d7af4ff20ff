"""Members of groups, as members are: most ack, some nack, reject, forget, leave, break off.

A member's stream is a stint. Messages that say they are poison fail with everyone, so that they die
of it; all others fail by chance.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from grpc.aio import EOF, AioRpcError

from tests.integration.history import History
from tests.integration.link import Gone, Link, hearing, saying
from tests.integration.stint import Held, Place, Stint, now_ms
from waterclock.log.schema import MESSAGES, _read
from waterclock.v1 import broker_pb2 as pb

KINDS = {
    "ack": pb.Answer.ACK,
    "nack": pb.Answer.NACK,
    "give back": pb.Answer.GIVE_BACK,
    "reject": pb.Answer.REJECT,
    "extend": pb.Answer.EXTEND,
}
HABITS = {"ack": 930, "nack": 25, "give back": 10, "reject": 4, "extend": 16, "forget": 15}
"""Of a thousand messages."""
GOOD_HABITS = {"ack": 1}
BEAT_S = 0.2
ECHO = 1 << 40
"""Beyond all generations: the node refuses an answer that speaks of one."""


class Members:
    """All members of all groups of one topic."""

    def __init__(
        self, link: Link, history: History, rng: Random, *, topic: str, lease_ms: int
    ) -> None:
        self.link = link
        self.history = history
        self.rng = rng
        self.topic = topic
        self.lease_ms = lease_ms
        self.is_good = False
        """They ack whatever is not poison, and stay."""
        self._is_over = asyncio.Event()
        self._numbers = count()

    def start(self, tasks: asyncio.TaskGroup, each: int) -> None:
        """Begin, with so many members in each group."""
        for group in self.history.groups:
            for number in range(each):
                tasks.create_task(self._member(group, f"{group}-{number}"))

    def end(self) -> None:
        """Have all of them leave."""
        self._is_over.set()

    @property
    def is_over(self) -> bool:
        """They have been told to leave."""
        return self._is_over.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not when it is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()

    async def _member(self, group: str, name: str) -> None:
        while not self.is_over:
            await self.link.up()
            # Now and then nobody it ever was.
            member = f"{name}-{next(self._numbers)}" if self.rng.random() < 0.2 else name
            await Conversation(self, Stint(group, member, self.history.run)).run()
            await self.pause(self.rng.uniform(0, 0.3))


class Conversation:
    """One stint of one member."""

    def __init__(self, members: Members, stint: Stint) -> None:
        self._members = members
        self._history = members.history
        self._rng = members.rng
        self._stint = stint
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._way = ""
        self._format = self._rng.choice([pb.FORMAT_ARROW, pb.FORMAT_ARROW, pb.FORMAT_MESSAGES])

    async def run(self) -> None:
        """Talk until the stream ends, in whatever way."""
        members = self._members
        self._call = members.link.broker.Subscribe()
        try:
            async with asyncio.TaskGroup() as tasks:
                opening = pb.SubscribeRequest(
                    open=pb.SubscribeRequest.Open(
                        topic=members.topic,
                        group=self._stint.group,
                        member=self._stint.member,
                        format=self._format,
                    ),
                    credit=pb.Credit(messages=self._rng.choice([10, 100, 500]), bytes=1 << 22),
                )
                await self._write(opening)
                beating = tasks.create_task(self._beat())
                leaving = tasks.create_task(self._leave_some_time())
                await self._listen(tasks)
                beating.cancel()
                leaving.cancel()
        except* (AioRpcError, Gone) as problems:
            self._stint.broken_ms = now_ms()
            for error in problems.exceptions:
                assert isinstance(error, AioRpcError | Gone)
                self._judge(error)
        finally:
            self._stint.ended_ms = self._stint.ended_ms or now_ms()
            self._call.cancel()

    def _judge(self, error: AioRpcError | Gone) -> None:
        details = "" if isinstance(error, Gone) else error.details() or ""
        # A member whose stream broke may meet itself when it comes back.
        if "opened another session" in details or (self._way == "close" and "leave:" in details):
            return
        self._members.link.failed("Subscribe", error)

    async def _write(self, request: pb.SubscribeRequest) -> bool:
        async with self._writing:
            try:
                async with saying():
                    await self._call.write(request)
            except (AioRpcError, asyncio.InvalidStateError, Gone):
                return False  # whoever reads is told how it ended
        return True

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            generation = ECHO + self._stint.asked
            self._stint.asked += 1
            await self._write(pb.SubscribeRequest(answers=[pb.Answer(generation=generation)]))

    async def _leave_some_time(self) -> None:
        """End the stint, in one of the ways there are."""
        members = self._members
        while True:
            await members.pause(self._rng.uniform(0.5, 8))
            if members.is_over or not members.is_good:
                break
        way = "leave" if members.is_over else self._rng.choice(["leave", "leave", "cut", "close"])
        self._way = way
        self._history.counts[f"members who {way}"] += 1
        # Nothing is said after this; what waits to be written goes before it.
        self._stint.ended_ms = now_ms()
        if way == "leave":
            await self._write(pb.SubscribeRequest(leave=True))
        elif way == "cut":
            self._stint.cut_ms = now_ms()
            self._call.cancel()
        else:
            async with self._writing:
                with suppress(AioRpcError, asyncio.InvalidStateError, Gone):
                    async with saying():
                        await self._call.done_writing()

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            with hearing():
                event = await self._call.read()
            if event is EOF:
                return
            match event.WhichOneof("event"):
                case "delivery":
                    self._take(event.delivery, tasks)
                case "lost":
                    lost = event.lost
                    self._history.refused_all(self._stint, lost.partition, lost.generation)
                case "refused":
                    self._refused(event.refused)

    def _refused(self, refused: pb.SubscribeResponse.Refused) -> None:
        if refused.generation >= ECHO:
            self._stint.echoed(refused.generation - ECHO)
        elif refused.is_stale:
            self._history.refused_all(self._stint, refused.partition, refused.generation)
        for offset in offsets_of(refused.bounds):
            self._history.refused(self._stint, (refused.partition, offset))

    def _take(self, delivery: pb.Delivery, tasks: asyncio.TaskGroup) -> None:
        answers: dict[str, list[int]] = {}
        rows = rows_of(delivery.messages)
        for offset, row in zip(offsets_of(delivery.bounds), rows, strict=True):
            message_id, value, due_ms = row
            held = Held(
                self._stint,
                delivery.partition,
                delivery.generation,
                delivery.attempt,
                delivery.deadline_ms,
            )
            self._history.received(
                self._stint,
                (delivery.partition, offset),
                held,
                message_id=message_id,
                value=value,
                due_ms=due_ms or 0,
                lease_ms=self._members.lease_ms,
            )
            answers.setdefault(self._habit(value or b""), []).append(offset)
        for kind, offsets in answers.items():
            if kind != "forget":
                tasks.create_task(self._answer(delivery, kind, offsets))

    def _habit(self, value: bytes) -> str:
        if value.startswith(b"poison"):
            return "nack"
        habits = GOOD_HABITS if self._members.is_good else HABITS
        return self._rng.choices([*habits], [*habits.values()])[0]

    async def _answer(self, delivery: pb.Delivery, kind: str, offsets: list[int]) -> None:
        await asyncio.sleep(self._rng.choice([0, 0, self._rng.uniform(0, 0.2)]))
        at_ms = 0
        if kind == "extend":
            at_ms = now_ms() + self._members.lease_ms
        elif kind == "nack" and self._rng.random() < 0.3:
            at_ms = now_ms() + self._rng.randrange(1_000)
        await self._say(delivery, kind, offsets, at_ms)
        if kind == "extend":
            await asyncio.sleep(self._rng.uniform(0, 0.3))
            await self._say(delivery, "ack", offsets, 0)

    async def _say(self, delivery: pb.Delivery, kind: str, offsets: list[int], at_ms: int) -> None:
        answer = pb.Answer(
            partition=delivery.partition,
            generation=delivery.generation,
            kind=KINDS[kind],
            bounds=bounds_of(offsets),
            at_ms=at_ms,
        )
        if self._stint.ended_ms:
            return
        self._history.counts[f"{kind}s"] += len(offsets)
        places: list[Place] = [(delivery.partition, offset) for offset in offsets]
        for place in places:
            self._history.answered(self._stint, place, kind, at_ms)
        await self._write(pb.SubscribeRequest(answers=[answer]))
        for place in places:
            self._history.sent(self._stint, place, kind)


def rows_of(messages: pb.Messages) -> Iterator[tuple[bytes, bytes | None, int | None]]:
    """Yield (id, value, due time) of messages in either format."""
    if messages.rows:
        for row in messages.rows:
            yield (
                row.message_id,
                row.value if row.HasField("value") else None,
                row.due_ms if row.HasField("due_ms") else None,
            )
    else:
        rows = _read(messages.arrow, MESSAGES)
        columns = (rows.column(name).to_pylist() for name in ("message_id", "value", "due_ms"))
        yield from zip(*columns, strict=True)


def offsets_of(bounds: Any) -> Iterator[int]:
    """Yield every offset within bounds."""
    for start, end in zip(bounds[::2], bounds[1::2], strict=True):
        yield from range(start, end)


def bounds_of(offsets: list[int]) -> list[int]:
    """Return ascending offsets as bounds."""
    bounds: list[int] = []
    for offset in offsets:
        if bounds and bounds[-1] == offset:
            bounds[-1] += 1
        else:
            bounds += (offset, offset + 1)
    return bounds
