"""Everyone who sends to the node: publishers, one by one, in batches and over a stream; cancels and
reschedules of what is pending; repeats of what was published before.

A publish that nobody answered is mostly sent again, with the same id; some are left unsure.
"""

import asyncio
import heapq
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import grpc
from grpc.aio import EOF, AioRpcError

from tests.integration.history import History, Published
from tests.integration.link import Gone, Link, hearing, saying
from tests.integration.stint import now_ms
from waterclock.log.schema import encode, from_messages
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as sp

EXPIRES = "wc-expires-ms"
DUE_AHEAD_MS = 5_000
"""How far ahead anything is scheduled, moves included: what must pass before all is quiet."""
AGAIN_MAX = 5_000
"""How many of the latest messages are remembered to be published again."""


class Traffic:
    """Publishes to one topic until told to end."""

    def __init__(
        self, link: Link, history: History, rng: Random, *, topic: str, partitions: int, run: str
    ) -> None:
        self._link = link
        self._history = history
        self._rng = rng
        self._topic = topic
        self._partitions = partitions
        self._run = run
        self._numbers = count()
        self._plans: list[tuple[int, int, Published]] = []
        self._known: list[Published] = []
        self._is_over = asyncio.Event()

    def end(self) -> None:
        """Begin nothing new; plans that are made are still carried out."""
        self._is_over.set()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin, with a few of each kind."""
        for _ in range(5):
            tasks.create_task(self._singles())
        for _ in range(2):
            tasks.create_task(self._batches())
        tasks.create_task(self._stream())
        for _ in range(3):
            tasks.create_task(self._planned())

    async def _pause(self, least_s: float, most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(least_s, most_s)):
                await self._is_over.wait()

    # Messages

    def _new(self) -> Published:
        rng, now = self._rng, now_ms()
        id_ = f"{self._run}-{next(self._numbers)}".encode()
        kind = rng.choices([b"plain", b"poison"], [99, 1])[0]
        message = Published(id_, b"%s %s %s" % (kind, id_, b"." * rng.randrange(200)))
        if rng.random() < 0.4:
            message.key = b"key-%d" % rng.randrange(40)
        elif rng.random() < 0.2:
            message.partition = rng.randrange(self._partitions)
        due = 0
        if rng.random() < 0.6:
            due = now + rng.choice([rng.randrange(-50, 300), rng.randrange(DUE_AHEAD_MS)])
        message.dues = {due}
        if rng.random() < 0.03:
            message.expires_ms = max(due, now) + rng.randrange(100, 3_000)
        return message

    def _one(self) -> Published:
        """Return a message to publish, now and then one that was published before."""
        if self._known and self._rng.random() < 0.04:
            return self._rng.choice(self._known)
        return self._new()

    def _stored(self, message: Published, partition: int, offset: int, *, is_new: bool) -> None:
        is_first = message.place is None
        self._history.stored(message.message_id, (partition, offset), is_new=is_new)
        if not is_first:
            return
        if len(self._known) < AGAIN_MAX:
            self._known.append(message)
        else:
            self._known[self._rng.randrange(AGAIN_MAX)] = message
        due = max(message.dues)
        if due > now_ms() and self._rng.random() < 0.6:
            self._plan(message, due)

    # One by one

    async def _singles(self) -> None:
        while not self._is_over.is_set():
            await self._single(self._one())
            await self._pause(0, 0.03)

    async def _single(self, message: Published) -> None:
        request = pb.PublishRequest(topic=self._topic, message=_proto(message))
        if message.partition is not None:
            request.partition = message.partition
        if message.expires_ms:
            request.expires_ms = message.expires_ms
        while True:
            await self._link.up()
            self._history.asked(message)
            try:
                with hearing():
                    answer = await self._link.broker.Publish(request)
            except (AioRpcError, Gone) as error:
                self._link.failed("Publish", error)
                self._history.counts["unanswered"] += 1
                if self._rng.random() < 0.3:
                    return
                await self._pause(0, 0.2)
                continue
            self._stored(message, answer.partition, answer.offset, is_new=answer.is_new)
            return

    async def settle(self) -> None:
        """Return when all that is written can be read, also what has fired and is being flushed.

        A log is flushed in its order: what is published now is acknowledged after all before it.
        """
        for partition in range(self._partitions):
            message = self._new()
            message.key, message.dues, message.expires_ms = None, {0}, 0
            self._history.asked(message)
            answer = await self._link.broker.Publish(
                pb.PublishRequest(topic=self._topic, message=_proto(message), partition=partition)
            )
            self._stored(message, answer.partition, answer.offset, is_new=answer.is_new)

    # In batches

    def _batch(self, *, is_sticky: bool) -> tuple[list[Published], pb.PublishBatchRequest]:
        size = self._rng.choice([1, 5, 20, 60, 150])
        made = {m.message_id: m for m in (self._one() for _ in range(size))}
        partition = None
        if self._rng.random() < 0.3:
            partition = self._rng.randrange(self._partitions)
        # All must go where they went before, or where they would go alone.
        batch = [
            m
            for m in made.values()
            if m.partition == partition and (partition is None or not m.key)
        ]
        if not batch:
            batch = [self._new()]
            batch[0].partition, batch[0].key = partition, None
        if is_sticky:
            batch = [m for m in batch if m.place is None] or [self._new()]
            for message in batch:
                message.partition = partition
        arrow = encode(from_messages(list(map(_message, batch))))
        request = pb.PublishBatchRequest(topic=self._topic, arrow=bytes(arrow), is_sticky=is_sticky)
        if partition is not None:
            request.partition = partition
        return batch, request

    def _batch_stored(self, batch: list[Published], answer: pb.PublishBatchResponse) -> None:
        repeated = set(answer.duplicates)
        for row, message in enumerate(batch):
            partition = answer.partitions[row] if answer.partitions else answer.partition
            offset = answer.offsets[row] if answer.offsets else answer.first_offset + row
            self._stored(message, partition, offset, is_new=row not in repeated)
            if message.key is None:
                # A sticky batch put it where its id alone does not lead.
                message.partition = partition

    async def _batches(self) -> None:
        while not self._is_over.is_set():
            batch, request = self._batch(is_sticky=False)
            while True:
                await self._link.up()
                for message in batch:
                    self._history.asked(message)
                try:
                    with hearing():
                        answer = await self._link.broker.PublishBatch(request)
                except (AioRpcError, Gone) as error:
                    self._link.failed("PublishBatch", error)
                    self._history.counts["unanswered"] += len(batch)
                    if self._rng.random() < 0.3:
                        break
                    await self._pause(0, 0.2)
                    continue
                self._batch_stored(batch, answer)
                break
            await self._pause(0.02, 0.25)

    # Over a stream

    async def _stream(self) -> None:
        """Keep a few batches in flight; those without an answer go first over the next stream."""
        unanswered: dict[int, tuple[list[Published], pb.PublishBatchRequest]] = {}
        numbers = count()
        while not self._is_over.is_set():
            await self._link.up()
            call = self._link.broker.PublishStream()
            try:
                for number, (batch, request) in list(unanswered.items()):
                    await self._send(call, number, batch, request)
                while not self._is_over.is_set():
                    while len(unanswered) < 4:
                        number = next(numbers)
                        unanswered[number] = self._batch(is_sticky=True)
                        await self._send(call, number, *unanswered[number])
                    await self._heard(call, unanswered)
                    await self._pause(0, 0.1)
                async with saying():
                    await call.done_writing()
                while unanswered:
                    await self._heard(call, unanswered)
            except (AioRpcError, Gone) as error:
                self._link.failed("PublishStream", error)
            except (asyncio.InvalidStateError, EOFError):
                pass  # the call is over; how it ended was told to whoever read last
            finally:
                call.cancel()
            await self._pause(0, 0.1)

    async def _send(
        self, call: Any, number: int, batch: list[Published], request: pb.PublishBatchRequest
    ) -> None:
        for message in batch:
            self._history.asked(message)
        async with saying():
            await call.write(pb.PublishStreamRequest(sequence=number, batch=request))

    async def _heard(
        self, call: Any, unanswered: dict[int, tuple[list[Published], pb.PublishBatchRequest]]
    ) -> None:
        with hearing():
            answer = await call.read()
        if answer is EOF:
            raise EOFError
        if answer.HasField("problem"):
            if answer.problem.code != grpc.StatusCode.UNAVAILABLE.value[0]:
                self._history.findings.add("strange status", f"PublishStream: {answer.problem}")
            return  # sent again over the next stream
        batch, _ = unanswered.pop(answer.sequence)
        self._batch_stored(batch, answer.published)

    # Plans for what is pending

    def _plan(self, message: Published, due_ms: int) -> None:
        """Cancel or move it some time, perhaps at the very moment it fires."""
        now = now_ms()
        at_ms = self._rng.choice(
            [due_ms + self._rng.randrange(-60, 60), self._rng.randrange(now, max(now, due_ms) + 1)]
        )
        self._history.counts["plans"] += 1
        heapq.heappush(self._plans, (at_ms, next(self._numbers), message))

    async def _planned(self) -> None:
        while self._plans or not self._is_over.is_set():
            now = now_ms()
            chosen: list[Published] = []
            while self._plans and self._plans[0][0] <= now and len(chosen) < 20:
                chosen.append(heapq.heappop(self._plans)[2])
            if not chosen:
                await asyncio.sleep(0.02)
                continue
            await self._link.up()
            try:
                with hearing():
                    await (self._cancel if self._rng.random() < 0.6 else self._move)(chosen)
            except (AioRpcError, Gone) as error:
                self._link.failed("Cancel or Reschedule", error)
                for message in chosen:
                    if self._rng.random() < 0.5:
                        self._plan(message, now_ms())

    def _pending(self, message: Published) -> sp.Pending:
        kind = self._rng.randrange(3)
        if kind == 0 and message.place is not None:
            partition, offset = message.place
            return sp.Pending(position=pb.Position(partition=partition, offset=offset))
        key = message.key if kind == 1 else None
        return sp.Pending(message_id=message.message_id, key=key)

    async def _cancel(self, chosen: list[Published]) -> None:
        for message in chosen:
            message.is_cancel_asked = True
        request = sp.CancelRequest(topic=self._topic, pending=map(self._pending, chosen))
        answer = await self._link.scheduler.Cancel(request)
        for message, outcome in zip(chosen, answer.outcomes, strict=True):
            self._history.cancelled(message, outcome=outcome)

    async def _move(self, chosen: list[Published]) -> None:
        dues = [now_ms() + self._rng.randrange(-20, DUE_AHEAD_MS) for _ in chosen]
        for message, due_ms in zip(chosen, dues, strict=True):
            self._history.moving(message, due_ms)
        request = sp.RescheduleRequest(
            topic=self._topic, pending=map(self._pending, chosen), due_ms=dues
        )
        answer = await self._link.scheduler.Reschedule(request)
        for message, due_ms, outcome in zip(chosen, dues, answer.outcomes, strict=True):
            self._history.moved(message, due_ms, outcome=outcome)
            if outcome == sp.OUTCOME_DONE and self._rng.random() < 0.5:
                self._plan(message, max(due_ms, now_ms()))


def _proto(message: Published) -> pb.Message:
    made = pb.Message(message_id=message.message_id, key=message.key, value=message.value)
    due = min(message.dues)
    if due:
        made.due_ms = due
    return made


def _message(message: Published) -> Message:
    due = min(message.dues)
    headers = {EXPIRES: b"%d" % message.expires_ms} if message.expires_ms else None
    return Message(
        message.value,
        key=message.key,
        message_id=message.message_id,
        headers=headers,
        due_ms=Millis(due) if due else None,
    )
