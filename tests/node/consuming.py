"""Groups, dead letters and replays on real logs, with a clock turned by hand.

Nothing here waits for time to pass: what a timer would do is done by `settle`, which serves every
session and tells every group the time, until nothing more happens.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.kit.clock import ManualClock
from tests.node.hosts import START_MS, Hosts, batch_of, config_in, opened
from waterclock.model.message import Message
from waterclock.model.sections import DeliveryConfig, GroupConfig
from waterclock.node.dead_letters.dead_letters import DeadLetters
from waterclock.node.groups.groups import Groups
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.outbound import Assigned, Delivery, Lost, Outbound, Refused, Revoked
from waterclock.node.groups.positions import Start
from waterclock.node.groups.session import AnswerKind, Session
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.replay.replays import Replays
from waterclock.node.replay.snapshots import Snapshots
from waterclock.storage.rewrite import Wanted, rewrites

DELIVERY = DeliveryConfig(
    ack_timeout_ms=1_000,
    max_retries=1,
    retry_delay_ms=100,
    retry_delay_ms_max=400,
    retry_jitter_percent=0,
)
GROUPS = GroupConfig(session_timeout_ms=3_000, revoke_grace_ms=500)


@dataclass
class Member:
    """What one session has received, in the order it came."""

    session: Session
    out: list[Outbound] = field(default_factory=list)

    def take(self) -> list[Outbound]:
        """Take everything that waits to go out."""
        new: list[Outbound] = []
        while (item := self.session.take()) is not None:
            new.append(item)
        self.out += new
        return new

    @property
    def deliveries(self) -> list[Delivery]:
        """All that was delivered so far."""
        return [item for item in self.out if isinstance(item, Delivery)]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """(partition, offset) of every message delivered so far."""
        return [place for delivery in self.deliveries for place in places_of(delivery)]

    @property
    def values(self) -> list[bytes]:
        """The value of every message delivered so far."""
        return [
            value
            for d in self.deliveries
            for value in d.messages.rows().column("value").to_pylist()
        ]

    @property
    def notices(self) -> list[Assigned | Revoked | Lost | Refused]:
        """All that came besides messages."""
        return [item for item in self.out if not isinstance(item, Delivery)]

    def answer(
        self,
        kind: AnswerKind,
        *offsets: int,
        partition: int = 0,
        generation: int | None = None,
        at_ms: int = 0,
    ) -> None:
        """Answer for single messages, in the generation in which the partition was assigned."""
        ranges = [(offset, offset + 1) for offset in offsets]
        if generation is None:
            generation = max(
                notice.generation
                for notice in self.notices
                if isinstance(notice, Assigned) and notice.partition == partition
            )
        self.session.answer(kind, partition, generation, ranges, at_ms)

    def ack(self, *offsets: int, partition: int = 0) -> None:
        """Ack single messages."""
        self.answer(AnswerKind.ACK, *offsets, partition=partition)

    def ack_all(self) -> None:
        """Ack everything ever delivered, one delivery after the other."""
        for delivery in self.deliveries:
            self.session.answer(
                AnswerKind.ACK,
                delivery.partition,
                delivery.generation,
                list(delivery.messages.ranges),
            )


def places_of(delivery: Delivery) -> list[tuple[int, int]]:
    """Return (partition, offset) of each message."""
    ranges = delivery.messages.ranges
    return [(delivery.partition, offset) for start, end in ranges for offset in range(start, end)]


@dataclass
class Consuming:
    """Everything that delivers."""

    hosts: Hosts
    clock: ManualClock
    groups: Groups
    dead_letters: DeadLetters
    replays: Replays
    has_crashed: bool = False

    async def publish(
        self, *values: bytes, partition: int = 0, topic: str = "t", **fields: Any
    ) -> None:
        """Publish one batch."""
        await self.send([Message(value, **fields) for value in values], partition, topic)

    async def send(self, messages: Sequence[Message], partition: int = 0, topic: str = "t") -> None:
        """Publish messages, allowing for ids that were there before."""
        host = self.hosts.topics.get(topic).partition(partition)
        batch = batch_of(*messages, now_ms=self.clock.now_ms())
        await host.publish(batch, allow_duplicate=True)

    async def join(
        self,
        member: str = "m",
        *,
        group: str = "g",
        topic: str = "t",
        credit: int = 1_000,
        credit_bytes: int = 1 << 30,
        start: Start = Start.EARLIEST,
        start_ms: int = 0,
    ) -> Member:
        """Open a session and let it be served."""
        session = await self.groups.open_session(
            topic,
            group,
            member=member,
            start=start,
            start_ms=start_ms,
            credit=(credit, credit_bytes),
        )
        await self.settle()
        return Member(session)

    def host(self, group: str = "g", topic: str = "t") -> GroupHost:
        """Return what drives a group."""
        return self.groups._hosts[topic, group]

    def serve(self) -> bool:
        """Serve every session that waits for it; return whether there was one."""
        waiting = [
            (host, session)
            for host in self.groups.hosts()
            for session in tuple(host._sessions.values())
            if session.pump is not None
        ]
        for host, session in waiting:
            if session.pump is not None:
                session.pump.cancel()
                host.delivery._pump(session)
        return bool(waiting)

    async def settle(self) -> None:
        """Let everything happen that can happen at this time."""
        while True:
            for host in self.groups.hosts():
                host.tick()
            is_busy = self.serve()
            await asyncio.sleep(0)
            if is_busy or any(h._is_saving or h._is_writing for h in self.groups.hosts()):
                continue
            if not any(s.pump for h in self.groups.hosts() for s in h._sessions.values()):
                return

    async def fire(self, *offsets: int, partition: int = 0, topic: str = "t") -> None:
        """Make scheduled messages deliverable."""
        host = self.hosts.topics.get(topic).partition(partition)
        fired = host.store.fire(np.array(offsets, np.int64), now_ms=self.clock.now_ms())
        host.flush_queue.request_flush()
        await host.flush_queue.wait_flushed(fired.durable_at)

    def compact(self, host: PartitionHost) -> None:
        """Leave only the latest message of each key."""
        store, now_ms = host.store, self.clock.now_ms()
        store.roll(now_ms)
        for job in rewrites(store, Wanted(keep_from=store.end, by_key=True), now_ms=now_ms):
            job.run()
            job.finish()

    def forget_frames(self) -> None:
        """Have every log read anew."""
        for reader in self.groups._logs.readers.values():
            assert isinstance(reader, LogReader)
            reader._stretches.clear()

    async def pass_time(self, ms: int) -> None:
        """Turn the clock, then let happen what follows."""
        self.clock.advance(ms)
        await self.settle()


@asynccontextmanager
async def consuming(
    folder: Path, *, clock: ManualClock | None = None, **sections: Any
) -> AsyncIterator[Consuming]:
    """Run groups on what a folder holds; leaving saves progress, unless it has crashed."""
    clock = clock or ManualClock(START_MS)
    sections = {"delivery": DELIVERY, "groups": GROUPS} | sections
    config = config_in(folder, **sections)
    async with opened(folder, config=config, clock=clock) as hosts:
        dead_letters = DeadLetters(hosts.topics, hosts.metadata, clock)
        groups = Groups(hosts.topics, hosts.metadata, dead_letters, config, clock)
        snapshots = Snapshots(hosts.topics, hosts.metadata, [folder])
        replays = Replays(hosts.topics, snapshots, hosts.metadata, clock)
        await dead_letters.open()
        await groups.open()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(groups.run())
            try:
                made = Consuming(hosts, clock, groups, dead_letters, replays)
                yield made
                if not made.has_crashed:
                    await groups.close()
            finally:
                running.cancel()
