"""The partition of a split stream in a node's memory: how it is, taking messages, putting them."""

from waterclock.cluster.hot_streams.frames import Moved
from waterclock.cluster.hot_streams.partitions import Local
from waterclock.node.streams.host import StreamHost
from waterclock.server.streams.responses import message_uuid
from waterclock.streams.effects import Deliver
from waterclock.streams.ring import Item
from waterclock.streams.waiters import Receiver, Sender


def look(host: StreamHost, name: str, size: int) -> Local:
    """Return how a stream is in memory; `size` if nothing was sent to it."""
    stream = host.table.find(name)
    if stream is None:
        return Local(room=size, size=size)
    polls = 0 if stream.competing is None else len(stream.competing)
    has_order = bool(stream.consumers or stream.watching or stream.tail_queue)
    ring = stream.ring
    if ring is None:
        return Local(0, polls, size, size, has_order)
    first, end = ring.first, ring.end
    returned = [at for at in stream.returned or () if at >= first]
    backlog = end - max(stream.taken, first - 1) + len(returned)
    positions = [stream.taken, *(each.position for each in (stream.consumers or {}).values())]
    room = ring.size - (end - max(min(positions), first - 1)) - len(returned)
    return Local(backlog, polls, max(0, room), ring.size, has_order or not ring.size)


def take(host: StreamHost, name: str, count: int) -> list[Moved]:
    """Take messages as a competing receiver would, for another node."""
    stream = host.table.find(name)
    if stream is None or not count:
        return []
    pulling = _Pulling()
    receiver = Receiver(name, pulling, deadline_ms=host.now_ms(), limit=count, is_poll=False)
    host.receive(receiver)
    if pulling.given is None:
        host.table.leave(receiver)
        return []
    now_ms, incarnation, counters = host.now_ms(), stream.incarnation, host.table.counters
    counters.received -= len(pulling.given.items)  # by nobody yet
    counters.missed -= pulling.given.missed
    stream.missed += pulling.given.missed  # whoever comes next is to hear of it
    return [
        Moved(
            item.body,
            message_uuid(item, incarnation, position),
            item.sent_ms,
            max(1, item.expires_ms - now_ms) if item.expires_ms else 0,
            item.stored,
        )
        for position, item in zip(pulling.given.positions, pulling.given.items, strict=True)
    ]


def put(host: StreamHost, name: str, moved: Moved, size: int) -> None:
    """Put a message of another node into a stream, or give it to a poll; raises CapacityReached."""
    now_ms = host.now_ms()
    expires_ms = now_ms + moved.left_ms if moved.left_ms else 0
    item = Item(moved.body, moved.message_id, moved.sent_ms, expires_ms, moved.stored)
    sender = Sender(name, item, _NOBODY, deadline_ms=now_ms)
    host.send(sender, size=size)
    host.table.counters.sent -= 1  # it was counted where it was sent
    host.table.leave(sender)  # no sender waits in what has become a rendezvous


class _Nobody:
    """Sends for another node, which does not listen."""

    def accepted(self, position: int, receivers: int) -> None:
        """Its sender has its answer."""

    def timed_out(self) -> None:
        """Nothing waits."""

    def dismissed(self) -> None:
        """Nothing waits."""

    def moved(self) -> None:
        """Nothing waits."""


_NOBODY = _Nobody()


class _Pulling(_Nobody):
    """Receives what is there, for another node."""

    def __init__(self) -> None:
        self.given: Deliver | None = None

    def delivered(self, given: Deliver) -> bool:
        """Take messages."""
        self.given = given
        return True

    def refused(self, missed: int, oldest: int) -> None:
        """It has no position."""

    def must_read(self, receiver: Receiver) -> None:
        """It has no position."""
