"""Stored streams of several nodes, in the replicated partitions of `__streams`.

Any node stores and reads: the leader of the stream's partition does it, here or over the link. So
it is to the rest of a node what a database is that all nodes reach, and nothing that was
acknowledged goes with a node. Who matches senders and receivers of a stream is another question,
which the hash ring answers: two nodes that both believe to own it can write no two orders.

A call is made again while the leader changes, for some seconds. What it did before is not known
then; its messages count as new, as they may be: they are offered to receivers once too often rather
than never.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from waterclock.model.errors import (
    Closed,
    NotLeader,
    StoreUnavailable,
    Unavailable,
    Unreachable,
    WaterclockError,
)
from waterclock.node.replication import Replication
from waterclock.node.streams.origin import StreamsOrigin
from waterclock.node.streams.partitions import StreamPartitions, partition_of_stream
from waterclock.node.streams.requests import (
    METHOD,
    BroughtOver,
    DeleteMessages,
    ReadPage,
    Request,
    StoreRecords,
    TakeOver,
    decode_request,
    encode,
)
from waterclock.node.topics import STREAMS_TOPIC
from waterclock.stores.base import (
    READ_BYTES_MAX,
    Page,
    Record,
    Stored,
    check_records,
    stream_key,
)
from waterclock.stores.log.rows import Row

ASK_S = 10.0
"""How long a call is made again: longer than it takes to lead in another's stead."""
PAUSE_S = 0.02
PAUSE_S_MAX = 0.4
MADE_S = 2.0
"""How long a node waits for the leader of the records before it sees whether it leads itself."""
BRING_S = 2.0
"""Between two attempts to bring what a node had stored while it was alone."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class ReplicatedStore:
    """A store in the partitions of `__streams`."""

    is_shared = True

    def __init__(
        self, partitions: StreamPartitions, origin: StreamsOrigin, replication: Replication
    ) -> None:
        self.partitions = partitions
        self.origin = origin
        self.places = replication.places
        """Who is asked."""
        self._call = replication.call
        self._is_open = self._is_closed = False

    def __repr__(self) -> str:
        return f"<ReplicatedStore {self.partitions!r}>"

    # The store

    async def open(self) -> None:
        """Return when streams can be stored; raises StoreUnavailable while old ones are brought.

        The leader of the records sees to it, whoever that is by then: try again if it raises.
        """
        try:
            if self.origin.metadata.is_leading:
                await self.origin.decide()
                await self.partitions.make()
            async with asyncio.timeout(MADE_S):
                node = await self.origin.known()
                await self.partitions.made()
        except TimeoutError as error:
            raise StoreUnavailable(f"nobody has made {STREAMS_TOPIC} yet: ask again") from error
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from error
        if node:
            raise StoreUnavailable(f"{node} brings the streams it had stored alone: ask again")
        self._is_open = True

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order, or none. They are committed on return."""
        name = stream_key(stream)
        check_records(records)
        if not records:
            return []
        request = StoreRecords(self._partition(name), stream, list(records), now_ms)
        stored, was_in_doubt = await self._ask(request, list[Stored])
        return _counted_as_new(stored) if was_in_doubt else stored

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give committed messages at positions > `after`: at least one if there is one."""
        partition = self._partition(stream_key(stream))
        request = ReadPage(partition, stream, after, limit, now_ms, bytes_max)
        return (await self._ask(request, Page))[0]

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many."""
        request = DeleteMessages(self._partition(stream_key(stream)), stream, older_than_ms)
        return (await self._ask(request, int))[0]

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages where this node leads; the others do the same."""
        return await self.partitions.purge(now_ms=now_ms, limit=limit)

    async def close(self) -> None:
        """Ask no more."""
        self._is_open, self._is_closed = False, True

    # Asking

    def _partition(self, name: bytes) -> int:
        if not self._is_open:
            raise Closed("the store is not open")
        return partition_of_stream(name, self.partitions.count)

    async def _ask(
        self, request: StoreRecords | ReadPage | DeleteMessages | TakeOver, answer: type[T]
    ) -> tuple[T, bool]:
        """Return the leader's answer, and whether an attempt before may have done the same."""
        loop = asyncio.get_running_loop()
        end, pause_s = loop.time() + ASK_S, PAUSE_S
        is_in_doubt = False
        while True:
            leader = self.places.leader_of(STREAMS_TOPIC, request.partition)
            try:
                return await self._ask_node(leader, request, answer), is_in_doubt
            except (Unavailable, Closed) as error:
                is_in_doubt = is_in_doubt or not isinstance(error, NotLeader | Unreachable)
                if loop.time() + pause_s >= end or self._is_closed:
                    raise StoreUnavailable(str(error)) from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _ask_node(self, node: str | None, request: Request, answer: type[T]) -> T:
        if node is None:
            raise NotLeader("these streams")
        if node == self.places.me:
            return cast("T", await self._perform(request))
        data = await self._call(node, METHOD, encode(request))
        return msgspec.msgpack.decode(data, type=answer)

    async def answer(self, data: bytes) -> bytes:
        """Answer what another node asks this one."""
        return encode(await self._perform(decode_request(data)))

    async def _perform(self, request: Request) -> object:
        if isinstance(request, BroughtOver):
            await self.origin.brought_over(request.node)
            return None
        return await self.partitions.perform(request)

    # What was stored before there were several nodes

    async def bring_over(self) -> None:
        """Bring what this node had stored while it was alone, if it has anything; then it ends."""
        while await self.origin.known() and self.origin.is_here:
            try:
                async for rows in self.origin.batches():
                    await self.take_over(rows)
                brought = BroughtOver(self.places.me)
                await self._ask_node(self.places.meta_leader(), brought, type(None))
                log.info("streams_brought_over")
            except WaterclockError as error:
                log.warning("streams_not_brought_over reason=%s", error)
            await asyncio.sleep(BRING_S)
        if self.origin.is_left_behind:
            log.warning("stored_streams_left_behind: others had theirs when this node came")

    async def take_over(self, rows: list[Row]) -> None:
        """Have rows of another log written, each by the leader of its partition."""
        await self.partitions.made()
        count = self.partitions.count
        parts: dict[int, list[Row]] = {}
        for row in rows:
            parts.setdefault(partition_of_stream(row.name, count), []).append(row)
        for partition, part in parts.items():
            await self._ask(TakeOver(partition, part), type(None))


def _counted_as_new(stored: list[Stored]) -> list[Stored]:
    """Say of each message that it is new, but where it is repeated in the call itself."""
    firsts: dict[int, int] = {}
    for number, each in enumerate(stored):
        firsts.setdefault(each.position, number)
    return [Stored(each.position, firsts[each.position] == n) for n, each in enumerate(stored)]
