"""Reads partitions that only other nodes have a copy of, or a whole one; and has this node's copies
read.

A request of nodes only, over the link as calls are. Whoever leads the partition is asked, or
another node with a copy while nobody leads it: readers see the same of all of them, what is
committed, if one of them perhaps a little later. If the copy that is asked is damaged, it answers
with what stands in front of the damage, and nothing if that is nothing: then others are asked.

    request     a `LogQuery` in JSON
    answer      length of the head u32, the head in JSON, frames as they lie in the log
"""

from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from waterclock.cluster.remote_calls import BadCall, UnforeseenElsewhere
from waterclock.log.frame import Frame, read_frame
from waterclock.model.errors import FrameDamaged, NotLeader, Unavailable, WaterclockError
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.partition.remote_log import READ_BYTES, LogAnswer, LogQuery, frames_from
from waterclock.node.places import Places
from waterclock.node.topics import Topics
from waterclock.server.calls import Calls
from waterclock.server.cluster.calls.answering import NodesMethod
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.fetch import retained_offset

READ_LOG: Final = "Nodes/ReadLog"

_LENGTH = Struct(">I")


class _Head(msgspec.Struct, frozen=True):
    start: int
    end: int
    retained: int
    log_id: str
    log_time_ms: int
    next_offset: int
    positions: tuple[int, ...]


class RemoteLogs:
    """Asks other nodes, for the partitions of this one."""

    def __init__(self, remote: RemoteCalls, places: Places) -> None:
        self._remote = remote
        self._places = places
        self._turn = 0

    def __repr__(self) -> str:
        return f"<RemoteLogs of {self._places.me}>"

    async def read(self, query: LogQuery) -> LogAnswer:
        """Return what a node says of its copy; raises Unavailable if none answers now."""
        node = self._source(query.topic, query.partition)
        answer = await self._asked(node, query)
        if 0 <= answer.next_offset <= query.offset < answer.end:
            # Its copy is damaged there. A call goes one hop, so it asks nobody itself.
            for other in self._others(query.topic, query.partition):
                if other != node:
                    with suppress(WaterclockError):  # then it is asked again, as is the first
                        found = await self._asked(other, query)
                        if found.next_offset > query.offset:
                            return found
        return answer

    async def _asked(self, node: str, query: LogQuery) -> LogAnswer:
        try:
            answer = await self._remote.unary(node, READ_LOG, msgspec.json.encode(query))
        except UnforeseenElsewhere as error:  # its log has it; this node goes on
            raise Unavailable(f"{node}: {error}") from error
        return _decoded(answer)

    def _others(self, topic: str, partition: int) -> list[str]:
        """Return the other nodes that have a copy."""
        me = self._places.me
        return [each for each in self._places.replicas_of(topic, partition) if each != me]

    def _source(self, topic: str, partition: int) -> str:
        me, leader = self._places.me, self._places.leader_of(topic, partition)
        if leader is not None and leader != me:
            return leader
        others = self._others(topic, partition)
        if not others:
            raise NotLeader(f"{topic}/{partition}", leader=leader or "")
        self._turn += 1  # one of them may be away
        return others[self._turn % len(others)]


def reading_of(topics: Topics, calls: Calls) -> NodesMethod:
    """Return what answers other nodes that read partitions of this one."""
    readers: dict[PartitionHost, LogReader] = {}

    def reader_of(host: PartitionHost) -> LogReader:
        reader = readers.get(host)
        if reader is None or reader.store is not host.store:
            for gone in [each for each in readers if not each.is_open]:
                del readers[gone]
            reader = readers[host] = LogReader(host.store, met_damage=host.met_damage)
        return reader

    async def read(request: bytes) -> bytes:
        try:
            query = msgspec.json.decode(request, type=LogQuery)
        except msgspec.MsgspecError as error:
            raise BadCall(f"{READ_LOG}: {error}") from None
        topic = topics.get(query.topic)
        host = topic.partition(query.partition)
        if query.wait_ms and host.store.acknowledged_end <= query.beyond:
            try:
                async with calls.waiting(query.wait_ms / 1_000):
                    await host.flush_queue.wait_flushed(query.beyond + 1)
            except TimeoutError:
                pass
        reader = reader_of(host)
        return _encoded(reader, query, retained_offset(topic, reader.store))

    return read


def _encoded(log: LogReader, query: LogQuery, retained: int) -> bytes:
    frames: list[Frame] = []
    next_offset = query.offset
    if query.offset >= 0:
        frames, next_offset = frames_from(log, query.offset, min(query.bytes_max, READ_BYTES))
    positions = tuple(log.store.offset_at(time_ms) for time_ms in query.times)
    head = msgspec.json.encode(
        _Head(
            log.start,
            log.end,
            retained,
            log.log_id.hex(),
            log.log_time_ms,
            next_offset,
            positions,
        )
    )
    return b"".join((_LENGTH.pack(len(head)), head, *(frame.raw for frame in frames)))


def _decoded(data: bytes) -> LogAnswer:
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        head = msgspec.json.decode(memoryview(data)[_LENGTH.size : at], type=_Head)
        frames = []
        while at < len(data):
            frame = read_frame(data, at)
            frames.append(frame)
            at += frame.header.size
    except (msgspec.MsgspecError, FrameDamaged, ValueError, StructError) as error:
        raise BadCall(f"{READ_LOG}: the answer cannot be read: {error}") from error
    return LogAnswer(
        head.start,
        head.end,
        head.retained,
        bytes.fromhex(head.log_id),
        head.log_time_ms,
        frames,
        head.next_offset,
        head.positions,
    )
