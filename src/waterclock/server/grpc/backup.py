"""Backups over gRPC: the cut of the node, then the bytes that the caller does not have yet.

The stream is the lease: as long as it is open the node keeps the files of the cut, and whoever goes
away, or hangs, lets go of them with it. Bytes are read on a thread and sent as fast as the caller
takes them.
"""

import asyncio

from waterclock.model.errors import BadInput, Busy
from waterclock.model.protobuf import to_proto
from waterclock.model.units import KIB
from waterclock.node.backup.live import LiveCut, take_cut
from waterclock.node.node import Node
from waterclock.server.calls import Calls, Stream
from waterclock.v1 import backup_pb2 as pb

CHUNK_BYTES = 256 * KIB
"""Small enough that sending one holds up nobody else's answer."""


class BackupApi:
    """The methods of `waterclock.v1.Backups`."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        self._is_taken = False

    async def take_backup(self, _: object, stream: Stream) -> None:
        """Serve one backup until all is sent that was wanted."""
        request = await stream.read()
        if request is None or not request.HasField("begin"):
            raise BadInput("a backup starts with `begin`")
        if self._is_taken:
            raise Busy("another backup is being taken: wait until it has ended")
        self._is_taken = True
        try:
            cut = await take_cut(self._node)
            try:
                async with self._calls.waiting():
                    await _Sending(cut, stream).run()
            finally:
                cut.close()
        finally:
            self._is_taken = False


class _Sending:
    """One cut on its way."""

    def __init__(self, cut: LiveCut, stream: Stream) -> None:
        self._cut = cut
        self._segments = [segment for _, segment in cut.cut.segments()]
        self._stream = stream

    async def run(self) -> None:
        answer = pb.TakeBackupResponse(cut=to_proto(self._cut.cut, pb.Cut))
        await self._stream.write(answer.SerializeToString())
        request = await self._stream.read()
        if request is None or not request.HasField("want"):
            raise BadInput("behind the cut, a backup says with `want` which segments to send")
        wanted = list(request.want.segments)
        if wanted != sorted(set(wanted)) or not set(wanted) <= set(range(len(self._segments))):
            count = len(self._segments)
            raise BadInput(f"want: numbers must ascend from 0, and be below {count}")
        for number in wanted:
            await self._send(number)

    async def _send(self, number: int) -> None:
        size = self._segments[number].size_bytes
        for position in range(0, size, CHUNK_BYTES):
            count = min(CHUNK_BYTES, size - position)
            data = await asyncio.to_thread(self._cut.read, number, position, count)
            chunk = pb.TakeBackupResponse.Chunk(segment=number, data=data)
            await self._stream.write(pb.TakeBackupResponse(chunk=chunk).SerializeToString())
