"""Single publishes, batched: those that arrive within a few milliseconds share a batch.

A message alone costs as much as a small batch, in Arrow, in the log and on disk. So singles wait
`linger_ms` for company where the last ones had some a moment ago, and not at all once there are
enough of them. Where they come one by one, waiting would cost each of them and save nothing: then a
single goes at the end of this turn of the loop, and only what comes while it is on its way to the
disk waits, for its answer or `linger_ms` (Nagle's rule, RFC 896). A batch that is refused is taken
apart, so that no message is refused for a neighbour's mistake.
"""

import asyncio
import os
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple
from weakref import WeakKeyDictionary

from waterclock.log.batch import encode_batch
from waterclock.log.expiry import expiring
from waterclock.log.partitioner import partition_of_key
from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput, Stopping, WaterclockError
from waterclock.model.ids import UUID7_ENTROPY_BYTES, uuid7
from waterclock.model.limits import Limits
from waterclock.model.message import Acks, Message
from waterclock.model.names import check_not_own
from waterclock.model.units import MIB
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic, Topics

BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_MAX = 4 * MIB
COMPANY_MIN = 4
"""A batch of so many was worth waiting for. Lower makes callers that publish side by side cheaper
for the node; higher spares more of those that do not from waiting."""
COMPANY_S = 0.1
"""How long after such a batch the next single waits for company. Shorter than the round trip of
those who publish side by side, the first of them goes alone; longer makes more wait that are."""


class PublishedOne(NamedTuple):
    """What became of a single message."""

    partition: int
    offset: int
    message_id: bytes
    is_new: bool
    made_partitions: int = 0
    """Of its topic, if this has made it."""


Waiter = asyncio.Future[PublishedOne]
Destination = tuple[PartitionHost, bool, Acks]
"""A partition, whether repeats are allowed, and when to answer: a batch is answered as a whole."""


@dataclass(slots=True)
class _PendingBatch:
    """Messages for one partition on their way into one batch."""

    messages: list[Message] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    size_bytes: int = 0


class PublishBatcher:
    """Publishes messages one by one, together. `run` must be running."""

    def __init__(self, topics: Topics, limits: Limits, clock: Clock, *, linger_ms: int) -> None:
        self._topics = topics
        self._limits = limits
        self._clock = clock
        self._linger_s = linger_ms / 1_000
        self._open: dict[Destination, _PendingBatch] = {}
        self._in_flight: dict[Destination, int] = {}
        """How many batches are not answered yet, where there are any."""
        self._company_until_s: WeakKeyDictionary[PartitionHost, float] = WeakKeyDictionary()
        """Until when others are expected, as the last batch was worth waiting for."""
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the publishes in flight until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None
                for pending in self._open.values():
                    _fail(pending.waiters, Stopping("the node is stopping"))
                self._open.clear()

    async def publish(
        self,
        topic: str,
        message: Message,
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        expires_ms: int | None = None,
        acks: Acks = "quorum",
    ) -> PublishedOne:
        """Publish one message; it is durable on return."""
        check_not_own(topic)
        if expires_ms is not None:
            message = expiring(message, expires_ms)
        is_anonymous = not message.message_id
        if is_anonymous:
            made = uuid7(self._clock.now_ms(), os.urandom(UUID7_ENTROPY_BYTES))
            message = _named(message, made)
        found, made_partitions = self._topics.find(topic), 0
        if found is None:
            # What is refused makes no topic.
            encode_batch([message], self._limits, now_ms=self._clock.now_ms())
            found, made_partitions = await self._topics.ensure(topic, partition=partition)
        if partition is None:
            partition = _where(found, message, is_anonymous=is_anonymous)
        host = found.partition(partition)
        if host.role in ("alone", "leader"):  # else another node says whether it can
            host.store.check_appendable()
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._add((host, allow_duplicate, acks), message, waiter)
        published = await waiter
        return published._replace(made_partitions=made_partitions) if made_partitions else published

    def _add(self, key: Destination, message: Message, waiter: Waiter) -> None:
        if self._tasks is None:
            raise Stopping("the node is stopping")
        pending = self._open.get(key)
        if pending is None:
            pending = self._open[key] = _PendingBatch()
            loop = asyncio.get_running_loop()
            if key in self._in_flight or self._has_company(key[0], loop.time()):
                loop.call_later(self._linger_s, self._send, key, pending)
            else:
                loop.call_soon(self._send, key, pending)
        pending.messages.append(message)
        pending.waiters.append(waiter)
        pending.size_bytes += len(message.value or b"") + len(message.key or b"")
        is_full = len(pending.messages) >= BATCH_MESSAGES_MAX
        if is_full or pending.size_bytes >= BATCH_BYTES_MAX:
            self._send(key, pending)

    def _send(self, key: Destination, pending: _PendingBatch) -> None:
        if self._open.get(key) is not pending or self._tasks is None:
            return  # it was full, or the one before it answered, before its time
        del self._open[key]
        topic = self._topics.find(key[0].topic)
        if topic is not None:
            topic.next_turn()
        had_company = len(pending.messages) >= COMPANY_MIN
        self._company_until_s[key[0]] = inf if had_company else 0.0
        self._in_flight[key] = self._in_flight.get(key, 0) + 1
        task = self._tasks.create_task(self._publish(key, pending))
        task.add_done_callback(partial(self._landed, key, pending))

    def _landed(self, key: Destination, pending: _PendingBatch, task: asyncio.Task[None]) -> None:
        """Send what has waited for a batch that is answered now."""
        if task.cancelled():  # perhaps before its first step, so that it could tell nobody
            _fail(pending.waiters, Stopping("the node stopped before the disk answered"))
        host, now_s = key[0], asyncio.get_running_loop().time()
        # Those who published it go on when they have their answers, however long that took.
        if self._company_until_s[host] == inf:
            self._company_until_s[host] = now_s + COMPANY_S
        self._in_flight[key] -= 1
        if not self._in_flight[key]:
            del self._in_flight[key]
            if key in self._open and not self._has_company(host, now_s):
                self._send(key, self._open[key])

    def _has_company(self, host: PartitionHost, now_s: float) -> bool:
        return now_s < self._company_until_s.get(host, 0.0)

    async def _publish(self, key: Destination, pending: _PendingBatch) -> None:
        host, allow_duplicate, acks = key
        messages, waiters = pending.messages, pending.waiters
        try:
            now_ms = self._clock.now_ms()
            batch = encode_batch(messages, self._limits, now_ms=now_ms)
            appended = await host.publish(batch, allow_duplicate=allow_duplicate, acks=acks)
        except BadInput as error:
            if len(messages) == 1:
                _fail(waiters, error)
                return
            for part in self._apart(pending):
                await self._publish(key, part)
        except WaterclockError as error:
            _fail(waiters, error)
        else:
            for i, waiter in enumerate(waiters):
                is_new = appended.is_new is None or bool(appended.is_new[i])
                id_ = messages[i].message_id
                assert id_ is not None
                if not waiter.done():
                    offset = int(appended.offsets[i])
                    waiter.set_result(PublishedOne(host.partition, offset, id_, is_new))

    def _apart(self, pending: _PendingBatch) -> list[_PendingBatch]:
        """Answer the messages that are wrong by themselves; return the others, in smaller batches
        if all of them are right and only too much together."""
        good = _PendingBatch()
        for message, waiter in zip(pending.messages, pending.waiters, strict=True):
            try:
                encode_batch([message], self._limits, now_ms=self._clock.now_ms())
            except BadInput as error:
                _fail([waiter], error)
            else:
                good.messages.append(message)
                good.waiters.append(waiter)
        count = len(good.messages)
        if not count or count < len(pending.messages):
            return [good] if count else []
        half = count // 2
        return [
            _PendingBatch(good.messages[:half], good.waiters[:half]),
            _PendingBatch(good.messages[half:], good.waiters[half:]),
        ]


def _named(message: Message, message_id: bytes) -> Message:
    """Return a message with an id; what `replace` does in a third of its time."""
    return Message(
        message.value,
        key=message.key,
        message_id=message_id,
        headers=message.headers,
        due_ms=message.due_ms,
    )


def _where(topic: Topic, message: Message, *, is_anonymous: bool) -> int:
    count = len(topic.partitions)
    if count == 1:
        return 0
    # Without a name of its own a message stays with the others until their batch is sent: spreading
    # such singles would make small batches.
    if message.key is None and is_anonymous:
        return topic.turn % count
    key = message.message_id if message.key is None else message.key
    assert key is not None
    return partition_of_key(key, count)


def _fail(waiters: list[Waiter], error: WaterclockError) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
