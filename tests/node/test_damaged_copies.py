"""What has rotted in one copy of several is read from another, and nobody passes over it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.node.rot import rot
from tests.node.test_group_shards import Homes, homes, received
from waterclock.log.frame import Frame
from waterclock.model.errors import Unavailable
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.partition.remote_log import (
    LogAnswer,
    LogQuery,
    RemoteLog,
    current_log,
    frames_from,
    log_of,
)
from waterclock.node.replay.scan import Scan

VALUES = [b"1", b"2", b"3"]


class Copy:
    """The copy of another node, as this one asks it."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host
        self._reader = LogReader(host.store)

    async def read(self, query: LogQuery) -> LogAnswer:
        reader = self._reader
        if query.wait_ms and reader.end <= query.beyond:
            await self._host.flush_queue.wait_flushed(query.beyond + 1)
        frames: list[Frame] = []
        next_offset = query.offset
        if query.offset >= 0:
            frames, next_offset = frames_from(reader, query.offset, query.bytes_max)
        positions = tuple(reader.store.offset_at(time_ms) for time_ms in query.times)
        where = reader.start, reader.end, reader.start, reader.log_id, reader.log_time_ms
        return LogAnswer(*where, frames, next_offset, positions)


@asynccontextmanager
async def damaged(tmp_path, *, has_others: bool) -> AsyncIterator[tuple[Homes, PartitionHost]]:
    """Run a home of groups whose copy of their topic, which another node leads, has rotted in the
    middle. Nobody has noticed yet."""
    async with homes(tmp_path) as it:
        topic_logs = [bytes.fromhex(log_id) for log_id in it.a.hosts.topics.get("t").log_ids]
        it.cluster.move("b", but=topic_logs)
        it.cluster.leader = "a"
        for value in VALUES:
            await it.publish(value)
        await it.cluster.settled()
        host = it.b.hosts.topics.get("t").partition(0)
        host.has_others = lambda: has_others
        host.reads = Copy(it.a.hosts.topics.get("t").partition(0))
        middle = [frame for frame in host.store.frames(0) if frame.header.is_deliverable][1]
        rot(host, middle.header.base_offset)
        assert not host.store.faults
        yield it, host


async def test_a_group_is_given_what_has_rotted_in_the_copy_at_its_home(tmp_path):
    async with damaged(tmp_path, has_others=True) as (it, host):
        member = await it.b.join()

        assert await received(member, 3) == VALUES
        assert host.store.faults
        member.ack(*[place[1] for place in member.offsets])
        (partition,) = it.b.groups.get("t", "g").partitions
        assert (partition.committed, partition.missed) == (host.store.end, 0)

        await it.publish(b"4")
        assert await received(member, 4) == [*VALUES, b"4"], "it goes on elsewhere"


async def test_a_group_passes_over_what_has_rotted_in_the_only_copy(tmp_path):
    async with damaged(tmp_path, has_others=False) as (it, host):
        member = await it.b.join()

        assert await received(member, 2) == [b"1", b"3"]
        assert host.store.faults


async def values_of(scan: Scan) -> Sequence[bytes]:
    """Read to the end."""
    found: list[bytes] = []
    while (batch := await scan.next()) is not None:
        found += batch[0].rows().column("value").to_pylist()
    return found


async def test_a_replay_ends_with_an_error_at_what_has_rotted_and_the_next_one_has_it(tmp_path):
    async with damaged(tmp_path, has_others=True) as (_, host):
        end = host.store.acknowledged_end
        with pytest.raises(Unavailable, match="is damaged at"):
            await values_of(Scan(await current_log(host), 0, end))

        found = await current_log(host)
        assert isinstance(found, RemoteLog)
        assert found.end == end
        assert await values_of(Scan(found, 0, end)) == VALUES


async def test_a_replay_of_the_only_copy_passes_over_what_has_rotted(tmp_path):
    async with damaged(tmp_path, has_others=False) as (_, host):
        end = host.store.acknowledged_end
        assert await values_of(Scan(log_of(host), 0, end)) == [b"1", b"3"]
        assert isinstance(log_of(host), LogReader)
