"""A Waterclock topic, as a member of a group: the node keeps the progress, and needs no offset map.

A delivery is a range of the log with a lease, which the client renews as long as we hold it. What
is committed is acknowledged, rows by rows, so a finished message never comes again, wherever it
stands. A node also delivers messages behind others that came later in the log (they failed with
another member), and what it takes for lost it delivers once more. So messages are numbered here as
they come: `Record.offset` counts deliveries, and `LoggedRecord.log_offset` is the place in the log.

The node knows no pause: what comes for a paused partition is kept until it is resumed, and never
more than `prefetch` messages are on their way or here.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence

from waterclock.burrow.core.config import MapText
from waterclock.burrow.core.records import Assignment, Commit, Record, TopicPartition
from waterclock.burrow.runtime.source import NOT_OURS, Owner
from waterclock.client.client import Client, connect
from waterclock.client.consumer.delivery import ACK, GIVE_BACK, REJECT, Delivery, Kind, Lease
from waterclock.client.consumer.subscription import Subscription
from waterclock.client.target import Given
from waterclock.model.errors import BadConfig, Busy
from waterclock.security.credential import Credential

PREFETCH = 10_000
"""More than a pool finishes between two commits: what is finished and not committed counts."""


class LoggedRecord(Record):
    """A record of a Waterclock topic."""

    __slots__ = ("log_offset", "message_id")

    log_offset: int
    """Where it is in the log of its partition."""
    message_id: bytes
    """The same at every delivery."""


class _Held:
    """A delivery, and the numbers of its rows: row 0 has `start`, whether it is ours or not."""

    __slots__ = ("delivery", "open_rows", "records", "start")

    def __init__(self, delivery: Delivery, start: int, rows: Iterable[int]) -> None:
        self.delivery = delivery
        self.start = start
        self.open_rows = list(rows)
        """Rows not answered yet, ascending."""
        self.records: list[Record] = []

    def answer(self, kind: Kind, start: int, end: int) -> None:
        """Answer the rows with numbers in a range."""
        low = bisect_left(self.open_rows, start - self.start)
        high = bisect_left(self.open_rows, end - self.start)
        if low < high:
            self.delivery.acks.answer(self.delivery, kind, self.open_rows[low:high])
            del self.open_rows[low:high]


class _Partition:
    """A partition under one lease."""

    __slots__ = ("epoch", "held", "is_paused", "kept", "lease")

    def __init__(self, lease: Lease, epoch: int) -> None:
        self.lease = lease
        self.epoch = epoch
        self.held: deque[_Held] = deque()
        self.is_paused = False
        self.kept: deque[Delivery] = deque()
        """What came and was not made into records yet."""

    @property
    def is_idle(self) -> bool:
        """Whether the pool holds none of its records any more."""
        return all(record.home is None for held in self.held for record in held.records)

    def answer(self, kind: Kind, start: int, end: int) -> None:
        for held in self.held:
            held.answer(kind, start, end)
        while self.held and not self.held[0].open_rows:
            self.held.popleft()

    def give_back(self) -> None:
        """Let others have what is not answered."""
        if self.lease.is_void:
            return
        for held in self.held:
            if held.open_rows:
                held.delivery.acks.answer(held.delivery, GIVE_BACK, held.open_rows)
        for delivery in self.kept:
            if rows := delivery.take_rest():
                delivery.acks.answer(delivery, GIVE_BACK, rows)


class WaterclockSource:
    """Reads a topic in a group. Give it a client, or an address, or several, and a credential to
    connect by. It goes on at another node of a cluster as the client does: what the pool works on
    then comes again."""

    def __init__(
        self,
        topic: str,
        *,
        group: str,
        client: Client | None = None,
        address: Given | None = None,
        credential: Credential | str | None = None,
        prefetch: int = PREFETCH,
    ) -> None:
        for name, given in (("address", address), ("credential", credential)):
            if client is not None and given is not None:
                raise BadConfig(name, "goes without a client: give one of them")
        self.map_units_max = 0
        self.map_text: MapText = "base32768"
        self._topic = topic
        self._group = group
        self._client = client
        self._address = address
        self._credential = credential
        self._own_client: Client | None = None
        self._prefetch = prefetch
        self._subscription: Subscription | None = None
        self._owner: Owner
        self._partitions: dict[int, _Partition] = {}
        self._epoch = 0
        self._next = 0
        """The number of the next message."""

    def __repr__(self) -> str:
        return f"<WaterclockSource {self._topic} as {self._group}>"

    async def open(self, owner: Owner) -> None:
        """Join the group; again after `close`, for the next pool."""
        if self._subscription is not None:
            raise Busy(f"{self!r} is open: each pool needs a source of its own")
        self._owner = owner
        if self._client is None:
            client = connect(self._address, credential=self._credential)
            self._client = self._own_client = await client.__aenter__()
        self._subscription = self._client.subscribe(
            self._topic, group=self._group, prefetch=self._prefetch, keep_alive=True
        )
        await self._subscription.__aenter__()

    async def poll(self, count: int, timeout_s: float) -> list[Record]:
        assert self._subscription is not None
        self._see_losses()
        await self._see_revocations()
        found = self._take(count)
        if found:
            return found
        try:
            async with asyncio.timeout(timeout_s):
                delivery = await self._subscription.next_delivery()
        except TimeoutError:
            return []
        self._see_losses()
        if delivery is None:  # it is over, and says why when asked again
            await asyncio.sleep(timeout_s)
            return []
        self._begin(delivery)
        return self._take(count)

    def _see_losses(self) -> None:
        gone = [number for number, each in self._partitions.items() if each.lease.is_void]
        if gone:
            for number in gone:
                del self._partitions[number]
            self._owner.lost([TopicPartition(self._topic, number) for number in gone])

    async def _see_revocations(self) -> None:
        """End with partitions the node wants back, once what we have of them is worked on.

        What we gave back now would come to the next owner behind what the client gave back when it
        was asked, and so out of order. If it takes longer than the node waits, we lose it.
        """
        for number, each in [*self._partitions.items()]:
            if each.lease.is_revoked and each.is_idle:
                await self._owner.revoke([TopicPartition(self._topic, number)])
                each.give_back()
                if self._partitions.get(number) is each:
                    del self._partitions[number]

    def _begin(self, delivery: Delivery) -> None:
        number = delivery.partition
        found = self._partitions.get(number)
        if found is None or found.lease is not delivery.lease:
            name = TopicPartition(self._topic, number)
            if found is not None:
                self._owner.lost([name])
            self._epoch += 1
            found = self._partitions[number] = _Partition(delivery.lease, self._epoch)
            self._owner.assigned([Assignment(name, self._epoch)])
        found.kept.append(delivery)

    def _take(self, count: int) -> list[Record]:
        """Make records of what came. What is left in a delivery can be given back at once."""
        found: list[Record] = []
        for each in self._partitions.values():
            while each.kept and not each.is_paused and len(found) < count:
                delivery = each.kept[0]
                found += self._records(each, delivery, count - len(found))
                if delivery.next_row >= delivery.end_row:
                    each.kept.popleft()
        return found

    def _records(self, partition: _Partition, delivery: Delivery, count: int) -> list[Record]:
        first = delivery.next_row
        rows = range(first, min(first + count, delivery.end_row))
        delivery.next_row = rows.stop
        keys, values, headers, ids = delivery.keys, delivery.values, delivery.headers, delivery.ids
        held = _Held(delivery, self._next - first, rows)
        found: list[Record] = []
        for row in rows:
            record = LoggedRecord(
                self._topic, delivery.partition, held.start + row, keys[row], values[row],
                headers[row] or (), delivery.append_ms_of(row), partition.epoch,
            )  # fmt: skip
            record.log_offset = delivery.offsets[row]
            record.message_id = ids[row]
            found.append(record)
        self._next += len(rows)
        held.records = found
        partition.held.append(held)
        return found

    def pause(self, names: Sequence[TopicPartition]) -> None:
        """Keep what comes of these."""
        for name in names:
            if name.partition in self._partitions:
                self._partitions[name.partition].is_paused = True

    def resume(self, names: Sequence[TopicPartition]) -> None:
        """Hand out what was kept."""
        for name in names:
            if name.partition in self._partitions:
                self._partitions[name.partition].is_paused = False

    def commit(
        self, commits: Mapping[TopicPartition, Commit]
    ) -> Awaitable[Mapping[TopicPartition, int]]:
        """Acknowledge what is finished."""
        codes: dict[TopicPartition, int] = {}
        for name, commit in commits.items():
            found = self._partitions.get(name.partition)
            if found is None or found.lease.is_void:
                codes[name] = NOT_OURS
                continue
            codes[name] = 0
            found.answer(ACK, 0, commit.offset)
            for start, end in commit.runs:
                found.answer(ACK, start, end)
        answer: asyncio.Future[Mapping[TopicPartition, int]]
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(codes)
        return answer

    async def write_dead_letters(self, records: Sequence[Record], error: BaseException) -> None:
        """Reject records: the node writes them to the topic's dead letters."""
        for record in records:
            found = self._partitions.get(record.partition)
            if found is not None and found.epoch == record.epoch:
                found.answer(REJECT, record.offset, record.offset + 1)

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        """Return nothing: numbers here are not those of the log."""
        return {}

    async def lags(self) -> Mapping[TopicPartition, int]:
        """Ask the node. What is finished and not committed yet counts as left there."""
        assert self._client is not None
        for group in await self._client.groups.list(self._topic):
            if group.name == self._group:
                return {
                    TopicPartition(self._topic, place.partition): place.lag
                    for place in group.partitions
                    if place.partition in self._partitions
                }
        return {}

    async def close(self) -> None:
        """Give back what was not finished, and leave."""
        if self._subscription is not None:
            for each in self._partitions.values():
                each.give_back()
            await self._subscription.leave()
            self._subscription = None
            self._partitions.clear()
        if self._own_client is not None:
            await self._own_client.__aexit__(None, None, None)
            self._client = self._own_client = None
