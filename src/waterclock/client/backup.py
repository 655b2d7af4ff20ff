"""A backup from the side that takes it: the cut of a node, then the bytes that are wanted of it.

    async with taking_backup(connection) as taken:
        ...                                      # look at taken.cut, decide what is missing
        async for number, data in taken.segments([0, 3]):
            ...

The node keeps the files of the cut until the block is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import grpc

from waterclock.client.connection import Connection
from waterclock.client.errors import error_of
from waterclock.model.backup import Cut
from waterclock.model.errors import NodeFailed
from waterclock.model.protobuf import from_proto
from waterclock.v1 import backup_pb2 as pb

_Stream = grpc.aio.StreamStreamCall[pb.TakeBackupRequest, pb.TakeBackupResponse]


class TakenCut:
    """A cut that a node keeps for us."""

    def __init__(self, cut: Cut, stream: _Stream) -> None:
        self.cut = cut
        self._stream = stream

    async def segments(self, wanted: Sequence[int]) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the bytes of segments, a chunk at a time, in the order in which they are wanted."""
        want = pb.TakeBackupRequest.Want(segments=wanted)
        # A stream that is over says how it ended to whoever reads.
        with suppress(asyncio.InvalidStateError):
            await self._stream.write(pb.TakeBackupRequest(want=want))
            await self._stream.done_writing()
        while isinstance(answer := await self._stream.read(), pb.TakeBackupResponse):
            yield answer.chunk.segment, answer.chunk.data


@asynccontextmanager
async def taking_backup(connection: Connection) -> AsyncIterator[TakenCut]:
    """Have a node cut itself now, and keep that until left."""
    address = connection.address
    stream: _Stream = connection.backups.TakeBackup()
    try:
        begin = pb.TakeBackupRequest.Begin()
        await stream.write(pb.TakeBackupRequest(begin=begin))
        answer = await stream.read()
        if not isinstance(answer, pb.TakeBackupResponse):
            raise NodeFailed("the node ended the backup before it had begun")
        yield TakenCut(from_proto(answer.cut, Cut), stream)
    except grpc.aio.AioRpcError as rpc:
        raise error_of(rpc, address) from rpc
    finally:
        stream.cancel()
