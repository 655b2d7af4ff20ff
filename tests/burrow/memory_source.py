"""A broker in memory and a source for it: what a pool is tested with, and one more source for the
contract that all of them keep."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

from waterclock.burrow.core.config import MapText
from waterclock.burrow.core.records import Assignment, Commit, Header, Record, TopicPartition
from waterclock.burrow.runtime.source import NOT_OURS, Owner


class MemoryBroker:
    """Topics, and what was committed for a group."""

    def __init__(self, partitions: int = 4) -> None:
        self.names = [TopicPartition("orders", number) for number in range(partitions)]
        self.logs: dict[TopicPartition, list[tuple[bytes | None, bytes, Sequence[Header]]]] = {
            name: [] for name in self.names
        }
        self.committed: dict[TopicPartition, Commit] = {}
        self.commits: list[Mapping[TopicPartition, Commit]] = []
        self.codes: list[int] = []
        """Answers to the next commits."""
        self.epoch = 0

    def publish(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int = 0,
        headers: Sequence[Header] = (),
    ) -> None:
        self.logs[self.names[partition]].append((key, value, headers))

    def fill(self, count: int, *, keys: int = 10, start: int = 0) -> None:
        for number in range(start, start + count):
            key = number % keys
            self.publish(b"%d" % number, key=b"k%d" % key, partition=key % len(self.names))


class MemorySource:
    """One member of the group; tests assign and revoke."""

    map_units_max = 4_095
    map_text: MapText = "base32768"

    def __init__(
        self, broker: MemoryBroker, *, topics: Sequence[TopicPartition] | None = None
    ) -> None:
        self.broker = broker
        self._initial = broker.names if topics is None else list(topics)
        self.owner: Owner
        self.epochs: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.polls = 0
        self.is_closed = False
        self.failure: Exception | None = None

    async def open(self, owner: Owner) -> None:
        self.owner = owner
        self.assign(self._initial)

    def assign(self, names: Sequence[TopicPartition]) -> None:
        assignments = []
        for name in names:
            self.broker.epoch += 1
            self.epochs[name] = self.broker.epoch
            self.paused.discard(name)
            found = self.broker.committed.get(name)
            self.positions[name] = 0 if found is None else found.offset
            place = None if found is None else found.offset
            text = "" if found is None else found.metadata
            end = len(self.broker.logs[name])
            assignments.append(Assignment(name, self.epochs[name], place, text, end))
        self.owner.assigned(assignments)

    async def revoke(self, names: Sequence[TopicPartition]) -> None:
        await self.owner.revoke(names)
        self._forget(names)

    def lose(self, names: Sequence[TopicPartition]) -> None:
        self._forget(names)
        self.owner.lost(names)

    def _forget(self, names: Sequence[TopicPartition]) -> None:
        for name in names:
            del self.epochs[name], self.positions[name]

    async def poll(self, count: int, timeout_s: float) -> list[Record]:
        self.polls += 1
        if self.failure is not None:
            raise self.failure
        records: list[Record] = []
        for name in self.epochs:
            if name in self.paused:
                continue
            start = self.positions[name]
            rows = self.broker.logs[name][start : start + max(1, count // len(self.epochs))]
            epoch = self.epochs[name]
            records += [
                Record(*name, start + at, key, value, headers, 0, epoch)
                for at, (key, value, headers) in enumerate(rows)
            ]
            self.positions[name] = start + len(rows)
        await asyncio.sleep(0 if records else 0.001)
        return records

    def pause(self, names: Sequence[TopicPartition]) -> None:
        self.paused.update(name for name in names if name in self.epochs)

    def resume(self, names: Sequence[TopicPartition]) -> None:
        self.paused.difference_update(names)

    def commit(
        self, commits: Mapping[TopicPartition, Commit]
    ) -> Awaitable[Mapping[TopicPartition, int]]:
        answer: asyncio.Future[Mapping[TopicPartition, int]] = (
            asyncio.get_running_loop().create_future()
        )
        code = self.broker.codes.pop(0) if self.broker.codes else 0
        codes = {name: code if name in self.epochs else NOT_OURS for name in commits}
        done = {name: commits[name] for name in commits if not codes[name]}
        self.broker.committed.update(done)
        if done:
            self.broker.commits.append(done)
        answer.set_result(codes)
        return answer

    async def log_ends(self) -> Mapping[TopicPartition, int]:
        return {name: len(self.broker.logs[name]) for name in self.epochs}

    async def close(self) -> None:
        self.is_closed = True
