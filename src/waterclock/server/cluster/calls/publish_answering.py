"""Batches that other nodes send to partitions that this one leads.

They are appended in the order they came, and answered as they become durable. How much may be on
its way is bounded by the nodes that clients are connected to.
"""

import asyncio
from typing import Final

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.remote_calls import Failure
from waterclock.cluster.remote_publishes import (
    BadPublish,
    Cutter,
    PublishHead,
    SentBatch,
    StoredBatch,
)
from waterclock.log.batch import parse_batch
from waterclock.model.errors import NotLeader, WaterclockError
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.places import Places
from waterclock.server.statuses import log_unforeseen

AHEAD_BYTES: Final = 1 << 20
"""What may come of a partition's batches beyond a channel's window, so that one of a common size
comes in one go: each round trip for credit costs both nodes a turn of their loops."""


class PublishAnswering:
    """Publishes for other nodes."""

    def __init__(self, node: Node, places: Places, tasks: asyncio.TaskGroup) -> None:
        self._node = node
        self._places = places
        self._tasks = tasks
        self._is_over = False

    def end(self) -> None:
        """Publish nothing more: who would do so has stopped."""
        self._is_over = True

    def requested(self, channel: Channel, body: bytes, *, is_last: bool) -> None:
        """Take batches of a partition from here on."""
        try:
            head, at = PublishHead.decode(body)
        except BadPublish as error:
            channel.cancel(str(error))
            return
        incoming = _Incoming(self, channel, head)
        channel.listener = incoming
        incoming.begin(body[at:])

    def spawn(self, incoming: "_Incoming", batch: SentBatch) -> None:
        """Publish a batch."""
        if self._is_over:
            incoming.refuse("the node stops")
            return
        # Tasks take their first step, which appends, in the order they were made.
        self._tasks.create_task(self._publish(incoming, batch))

    @property
    def batch_bytes_max(self) -> int:
        return self._node.config.limits.batch_bytes_max

    async def _publish(self, incoming: "_Incoming", batch: SentBatch) -> None:
        try:
            limits, now_ms = self._node.config.limits, self._node.clock.now_ms()
            host = self._host(incoming.head)
            parsed = parse_batch(batch.body, limits, now_ms=now_ms)
            appended = await host.publish(
                parsed, allow_duplicate=batch.allow_duplicate, acks=batch.acks
            )
            stored = StoredBatch(batch.number, appended.offsets, appended.is_new)
        except WaterclockError as error:
            stored = StoredBatch(batch.number, failure=Failure.of(error))
        except Exception as error:
            error_id = log_unforeseen("a publish of another node", error)
            text = f"something unforeseen happened, logged as error {error_id}"
            failure = Failure(text, facts={"error_id": error_id})
            stored = StoredBatch(batch.number, failure=failure)
        incoming.answer(stored)

    def _host(self, head: PublishHead) -> PartitionHost:
        """Return a partition that this node leads; a batch goes one hop."""
        leader = self._places.leader_of(head.topic, head.partition)
        host = self._node.topics.get(head.topic).partition(head.partition)
        is_led = host.role in ("alone", "leader") and not host.is_handing_over
        if leader != self._places.me or not is_led:
            raise NotLeader(f"{head.topic}/{head.partition}", leader=leader or "")
        return host


class _Incoming:
    """Batches of a partition from one node; the listener of their channel."""

    def __init__(self, publishes: PublishAnswering, channel: Channel, head: PublishHead) -> None:
        self.head = head
        self._publishes = publishes
        self._channel = channel
        self._cutter = Cutter(publishes.batch_bytes_max)
        self._is_answered = False

    def begin(self, data: bytes) -> None:
        """Take what came with the head."""
        self.piece(data, is_last=False)
        self._channel.grant(len(self.head.encode()) + AHEAD_BYTES)

    def refuse(self, why: str) -> None:
        """End it: nothing of what came last was stored."""
        self._channel.cancel(why)

    def answer(self, stored: StoredBatch) -> None:
        """Tell where a batch is; nothing happens if nobody is there."""
        if self._is_answered:
            self._channel.send(stored.encode())
        else:
            self._is_answered = True
            self._channel.answer(0, stored.encode(), is_last=False)

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        raise AssertionError("we were asked")

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """Publish what is whole."""
        try:
            for one in self._cutter.feed(body):
                self._publishes.spawn(self, SentBatch.of(*one))
        except BadPublish as error:
            self._channel.cancel(str(error))
            return
        self._channel.grant(len(body))

    def failed(self, error: Exception) -> None:
        """Nobody waits for answers; what came is stored all the same."""

    def drained(self) -> None:
        """Nothing waits for that: answers are short."""
