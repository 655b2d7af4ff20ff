"""Single publishes, batched: those that arrive within a few milliseconds share a batch.

A message alone costs as much as a small batch, in Arrow, in the log and on disk. So singles wait
`linger_ms` for company, not longer, and not at all once there are enough of them. A batch that is
refused is taken apart, so that no message is refused for a neighbour's mistake.
"""

import asyncio
import os
from dataclasses import dataclass, field
from typing import NamedTuple

from waterclock.log.batch import encode_batch
from waterclock.log.expiry import expiring
from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput, Stopping, WaterclockError
from waterclock.model.ids import UUID7_ENTROPY_BYTES, uuid7
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.names import check_not_own
from waterclock.model.units import MIB
from waterclock.node.partition.host import PartitionHost
from waterclock.node.publish.partitioner import partition_of_key
from waterclock.node.topics import Topic, Topics

BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_MAX = 4 * MIB


class PublishedOne(NamedTuple):
    """What became of a single message."""

    partition: int
    offset: int
    message_id: bytes
    is_new: bool
    made_partitions: int = 0
    """Of its topic, if this has made it."""


Waiter = asyncio.Future[PublishedOne]


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
        self._open: dict[tuple[PartitionHost, bool], _PendingBatch] = {}
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
        self._add(host, message, waiter, allow_duplicate=allow_duplicate)
        published = await waiter
        return published._replace(made_partitions=made_partitions) if made_partitions else published

    def _add(
        self, host: PartitionHost, message: Message, waiter: Waiter, *, allow_duplicate: bool
    ) -> None:
        if self._tasks is None:
            raise Stopping("the node is stopping")
        key = host, allow_duplicate
        pending = self._open.get(key)
        if pending is None:
            pending = self._open[key] = _PendingBatch()
            asyncio.get_running_loop().call_later(self._linger_s, self._send, key, pending)
        pending.messages.append(message)
        pending.waiters.append(waiter)
        pending.size_bytes += len(message.value or b"") + len(message.key or b"")
        is_full = len(pending.messages) >= BATCH_MESSAGES_MAX
        if is_full or pending.size_bytes >= BATCH_BYTES_MAX:
            self._send(key, pending)

    def _send(self, key: tuple[PartitionHost, bool], pending: _PendingBatch) -> None:
        if self._open.get(key) is not pending or self._tasks is None:
            return  # it was full before its time
        del self._open[key]
        host, allow_duplicate = key
        topic = self._topics.find(host.topic)
        if topic is not None:
            topic.next_turn()
        self._tasks.create_task(self._publish(host, pending, allow_duplicate=allow_duplicate))

    async def _publish(
        self, host: PartitionHost, pending: _PendingBatch, *, allow_duplicate: bool
    ) -> None:
        messages, waiters = pending.messages, pending.waiters
        try:
            now_ms = self._clock.now_ms()
            batch = encode_batch(messages, self._limits, now_ms=now_ms)
            appended = await host.publish(batch, allow_duplicate=allow_duplicate)
        except BadInput as error:
            if len(messages) == 1:
                _fail(waiters, error)
                return
            for part in self._apart(pending):
                await self._publish(host, part, allow_duplicate=allow_duplicate)
        except WaterclockError as error:
            _fail(waiters, error)
        except asyncio.CancelledError:
            _fail(waiters, Stopping("the node stopped before the disk answered"))
            raise
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
