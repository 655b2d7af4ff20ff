"""Frames on their way to other replicas: as fast as their channels take them, and when a replica is
far behind, no faster than is allowed."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from waterclock.cluster.replication.effects import Stream
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.server.cluster.replication.catch_up import CatchUp
from waterclock.server.cluster.replication.channels import ReplicaChannels

if TYPE_CHECKING:
    from waterclock.server.cluster.replication.hosted import Hosted


class _Waiting(NamedTuple):
    hosted: "Hosted"
    stream: Stream


class Streams:
    """What is to be streamed; what finds no room waits, in its order."""

    def __init__(self, channels: ReplicaChannels, catch_up: CatchUp) -> None:
        self._channels = channels
        self._loop = asyncio.get_running_loop()
        self._catch_up = catch_up
        self._blocked: dict[ReplicaId, deque[_Waiting]] = {}
        self._behind: deque[_Waiting] = deque()
        self._lagging: set[tuple[bytes, ReplicaId]] = set()
        """Logs, and the replicas to which more of them is to be sent than goes at once."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        count = sum(map(len, self._blocked.values()))
        return f"<Streams {count} blocked, {len(self._behind)} to catch up>"

    def add(self, hosted: "Hosted", stream: Stream) -> None:
        """Send a part of a log, now or when there is room."""
        if stream.to in self._blocked or self._channels.is_blocked(stream.to):
            self._blocked.setdefault(stream.to, deque()).append(_Waiting(hosted, stream))
        else:
            self._send(hosted, stream)

    def drained(self, to: ReplicaId) -> None:
        """A channel has room again."""
        waiting = self._blocked.pop(to, deque())
        while waiting:
            if self._channels.is_blocked(to):
                self._blocked[to] = waiting
                return
            self._send(*waiting.popleft())

    def forget(self, to: ReplicaId) -> None:
        """A link is gone, and all that waited for it."""
        self._blocked.pop(to, None)
        self._behind = deque(each for each in self._behind if each.stream.to != to)

    def close(self) -> None:
        """Send nothing any more."""
        self._blocked.clear()
        self._behind.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _is_behind(self, hosted: "Hosted", stream: Stream) -> bool:
        """Whether the last part it was sent was not the end of the log."""
        return (hosted.log_id, stream.to) in self._lagging

    def _send(self, hosted: "Hosted", stream: Stream) -> None:
        now_s = self._loop.time()
        if self._is_behind(hosted, stream) and self._catch_up.wait_s(now_s) > 0:
            self._behind.append(_Waiting(hosted, stream))
            self._wait()
            return
        tail = hosted.read(stream)
        if tail is None:
            return
        if tail.has_more:
            self._lagging.add((hosted.log_id, stream.to))
            self._catch_up.spend(len(tail.data), now_s)
        else:
            self._lagging.discard((hosted.log_id, stream.to))
        hosted.send(stream, tail)

    def _wait(self) -> None:
        if self._timer is None:
            wait_s = self._catch_up.wait_s(self._loop.time())
            self._timer = self._loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        waiting, self._behind = self._behind, deque()
        while waiting and self._catch_up.wait_s(self._loop.time()) <= 0:
            self.add(*waiting.popleft())
        self._behind.extendleft(reversed(waiting))
        if self._behind:
            self._wait()
