"""Publishes to partitions that other nodes lead: sent in order, many at once, and sent again.

A partition has a *lane*: a channel to its leader, and the batches that were not answered yet. When
the leader is another one, or its link breaks, all of these are sent again, in order, and what comes
meanwhile waits behind them. The ids are the same, so what was stored is stored once; a batch that
may repeat ids and may have been stored is not sent again, but ends as `Fenced`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.remote_publishes import (
    PUBLISH,
    BadPublish,
    Cutter,
    PublishHead,
    SentBatch,
    StoredBatch,
)
from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.model.errors import Fenced, NotLeader, Stopping, Unreachable
from waterclock.model.ids import Offset
from waterclock.model.message import Acks
from waterclock.node.partition.host import PartitionHost
from waterclock.node.places import Places
from waterclock.server.cluster.calls.remote_calls import Asks

PUBLISH_S: Final = 10.0
"""How long a batch is sent again: longer than it takes to lead in another's stead."""
PAUSE_S: Final = 0.02
PAUSE_S_MAX: Final = 0.4
ANSWER_BYTES_MAX: Final = 16 << 20
"""An answer has nine bytes for each message, at most."""

_AGAIN = (NotLeader, Fenced, Stopping)
"""What a leader says that leads no more."""


class RemotePublishes:
    """Publishes through the leaders of partitions. `PartitionHost.remote` of all hosts."""

    def __init__(
        self, asks: Asks, places: Places, spawn: Callable[[Coroutine[None, None, None]], object]
    ) -> None:
        self._asks = asks
        self._places = places
        self.spawn = spawn
        self._lanes: dict[PartitionHost, Lane] = {}
        self.sent = 0
        """Batches, each time they were sent."""

    def __repr__(self) -> str:
        return f"<RemotePublishes {len(self._lanes)} lanes>"

    async def publish(
        self, host: PartitionHost, batch: Batch, *, allow_duplicate: bool, acks: Acks
    ) -> Appended:
        """Return where a batch is, once its leader says so.

        Raises what that raised; NotLeader or Fenced if there is none for too long.
        """
        lane = self._lanes.get(host)
        if lane is None:
            lane = self._lanes[host] = Lane(self, host)
        return await lane.publish(batch, allow_duplicate=allow_duplicate, acks=acks)

    def forget(self, host: PartitionHost) -> None:
        """Let go of a partition that is deleted."""
        lane = self._lanes.pop(host, None)
        if lane is not None:
            lane.close()

    # What lanes use

    def leader_of(self, host: PartitionHost) -> str | None:
        """Return who leads a partition, as far as is known."""
        return self._places.leader_of(host.topic, host.partition)

    def is_here(self, node: str) -> bool:
        """Say if a node is this one."""
        return node == self._places.me

    def ask(self, node: str, body: bytes, lane: "Lane") -> Channel:
        """Open a lane's channel; raises Unreachable."""
        return self._asks.ask(node, PUBLISH, body, lane, is_last=False)


class _Waiting:
    """A batch that was not answered yet."""

    __slots__ = ("answer", "batch", "end", "sent", "was_sent")

    def __init__(self, batch: Batch, sent: SentBatch, end: float) -> None:
        self.answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.batch = batch
        self.sent = sent
        self.end = end
        self.was_sent = False
        """It may be stored, for all that is known."""

    async def publish_at(self, host: PartitionHost) -> None:
        """Publish it here, as this node leads by now."""
        sent = self.sent
        try:
            appended = await host.publish(
                self.batch, allow_duplicate=sent.allow_duplicate, acks=sent.acks
            )
        except Exception as error:
            self.fail(error)
        else:
            if not self.answer.done():
                self.answer.set_result(appended)

    def fail(self, error: Exception) -> None:
        """Tell why it is not stored, or that nobody knows."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever waited may have gone


class Lane:
    """The batches of a partition on their way to its leader; the listener of its channel."""

    def __init__(self, publishes: RemotePublishes, host: PartitionHost) -> None:
        self._loop = asyncio.get_running_loop()
        self._publishes = publishes
        self._host = host
        self._waiting: dict[int, _Waiting] = {}
        """By number, in order."""
        self._number = 0
        self._channel: Channel | None = None
        self._cutter = Cutter(ANSWER_BYTES_MAX)
        self._pause_s = PAUSE_S
        self._timer: asyncio.TimerHandle | None = None
        host.on_role.append(self._role_changed)

    def __repr__(self) -> str:
        return f"<Lane of {self._host.topic}/{self._host.partition} {len(self._waiting)} waiting>"

    async def publish(self, batch: Batch, *, allow_duplicate: bool, acks: Acks) -> Appended:
        """Send a batch, behind those that wait."""
        self._number += 1
        sent = SentBatch(self._number, allow_duplicate, acks, batch.body)
        waiting = _Waiting(batch, sent, self._loop.time() + PUBLISH_S)
        self._waiting[self._number] = waiting
        if self._channel is not None:
            self._send(waiting)
        elif self._timer is None:
            self._connect()
        # Who gives up waiting takes nothing back: it is stored all the same.
        return await asyncio.shield(waiting.answer)

    def close(self) -> None:
        """Send nothing more."""
        self._host.on_role.remove(self._role_changed)
        self._lose()
        for waiting in self._take_all():
            waiting.fail(NotLeader(f"{self._host.topic}/{self._host.partition}"))

    def _role_changed(self, host: PartitionHost) -> None:
        """If this node leads by now, what waits is stored before anything that comes."""
        if host.role == "leader" and self._waiting:
            self._lose()
            self._fail_late()
            for waiting in self._take_all():
                self._publishes.spawn(waiting.publish_at(host))
        elif self._channel is None and self._waiting:
            self._connect_now()

    # To the leader

    def _connect_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connect()

    def _send(self, waiting: _Waiting) -> None:
        assert self._channel is not None
        waiting.was_sent = True
        self._publishes.sent += 1
        self._channel.send(waiting.sent.encode())

    def _connect(self) -> None:
        """Send all that waits to whoever leads now."""
        self._timer = None
        self._fail_late()
        if not self._waiting:
            self._pause_s = PAUSE_S
            return
        leader = self._publishes.leader_of(self._host)
        if leader is None:
            self._try_later()
        elif self._publishes.is_here(leader):
            self._try_later()  # it begins to lead, and says so then
        else:
            head = PublishHead(self._host.topic, self._host.partition).encode()
            self._cutter = Cutter(ANSWER_BYTES_MAX)
            try:
                self._channel = self._publishes.ask(leader, head, self)
            except Unreachable:
                self._try_later()
                return
            for waiting in list(self._waiting.values()):
                self._send(waiting)

    def _try_later(self) -> None:
        self._lose()
        if self._timer is None:
            self._timer = self._loop.call_later(self._pause_s, self._connect)
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    def _lose(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            channel.cancel("another node leads, or will")

    def _fail_late(self) -> None:
        """Give up what has been tried for long enough, or must not be tried again."""
        now = self._loop.time()
        where = f"{self._host.topic}/{self._host.partition}"
        for number, waiting in list(self._waiting.items()):
            if waiting.answer.cancelled():
                continue  # it is sent all the same
            is_once = waiting.was_sent and waiting.sent.allow_duplicate
            if waiting.end > now and not is_once:
                continue
            del self._waiting[number]
            if waiting.was_sent:
                waiting.fail(Fenced(f"a batch for {where} may be stored, or not: send it again"))
            else:
                waiting.fail(NotLeader(where))

    def _take_all(self) -> list[_Waiting]:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    # What the channel tells

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        """The leader begins to answer."""
        self.piece(body, is_last=is_last)

    def piece(self, body: bytes, *, is_last: bool) -> None:
        """The leader goes on."""
        channel = self._channel
        try:
            for one in self._cutter.feed(body):
                self._stored(StoredBatch.of(*one))
        except BadPublish as error:
            for waiting in self._take_all():
                waiting.fail(error)
            self._lose()
            return
        if channel is not None:
            channel.grant(len(body))

    def failed(self, error: Exception) -> None:
        """The leader, or the way to it, is gone."""
        self._channel = None
        self._try_later()

    def drained(self) -> None:
        """Nothing waits for that: what is on its way is bounded where it came from."""

    def _stored(self, stored: StoredBatch) -> None:
        waiting = self._waiting.get(stored.number)
        if waiting is None:
            return
        if stored.failure is not None:
            error = stored.failure.exception()
            if isinstance(error, _AGAIN):
                # Of what it did not lead it has stored nothing.
                waiting.was_sent = isinstance(error, Fenced)
                self._try_later()
                return
            waiting.fail(error)
        elif not waiting.answer.done():
            assert stored.offsets is not None
            appended = Appended(stored.offsets, stored.is_new, durable_at=Offset(0))
            waiting.answer.set_result(appended)
        del self._waiting[stored.number]
        self._pause_s = PAUSE_S
