"""Requests that begin and never end: a node takes in no more of them than it has room for."""

import asyncio
from contextlib import closing

from tests.server.raw_http2 import RawHttp2
from tests.server.served import running_server
from waterclock.model.limits import Limits
from waterclock.model.sections import ServerConfig
from waterclock.model.units import KIB, MIB
from waterclock.server.grpc.server import ENVELOPE_BYTES, WINDOW_BYTES

CALLS = 40
SIZE = 2 * MIB
ROOM = ServerConfig(receive_bytes_max=8 * MIB)
SMALL = Limits(batch_bytes_max=SIZE, message_bytes_max=256 * KIB)


def taken_in(port: int, path: str) -> int:
    client = RawHttp2(port)
    with closing(client.socket):
        for _ in range(CALLS):
            client.call(path, SIZE)
        return client.send_all_that_is_let_in()


async def test_unfinished_requests_are_let_in_as_far_as_there_is_room(tmp_path):
    async with running_server(tmp_path, server=ROOM, limits=SMALL) as it:
        for method in ("Broker/PublishBatch", "Admin/ListTopics"):
            path = f"/waterclock.v1.{method}"
            taken = await asyncio.to_thread(taken_in, it.server.grpc_port, path)

            places = ROOM.receive_bytes_max // (SIZE + ENVELOPE_BYTES)
            assert places * SIZE - CALLS < taken <= places * SIZE + CALLS * WINDOW_BYTES, method
