"""Requests that begin and never end: a node takes in no more of them than it has room for."""

import asyncio
from contextlib import closing

from tests.server.raw_http2 import RawHttp2
from tests.server.served import arrow_of, running_server
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import ServerConfig
from waterclock.model.units import KIB, MIB
from waterclock.server.grpc.server import WINDOW_BYTES, places_of
from waterclock.v1 import broker_pb2 as pb

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


def send_and_hear_the_end(port: int, path: str) -> None:
    client = RawHttp2(port)
    with closing(client.socket):
        for _ in range(CALLS):
            client.call(path, SIZE)
        client.send_all_that_is_let_in()
        client.hear_until_all_have_ended()


async def test_unfinished_requests_are_let_in_as_far_as_there_is_room(tmp_path):
    async with running_server(tmp_path, server=ROOM, limits=SMALL) as it:
        for method in ("Broker/PublishBatch", "Admin/ListTopics"):
            path = f"/waterclock.v1.{method}"
            taken = await asyncio.to_thread(taken_in, it.server.grpc_port, path)

            places = places_of(it.node.config)
            assert places * SIZE - CALLS < taken <= places * SIZE + CALLS * WINDOW_BYTES, method


async def test_streams_of_a_connection_that_sends_too_much_are_ended_and_others_go_on(tmp_path):
    async with running_server(tmp_path, server=ROOM, limits=SMALL) as it:
        other = it.broker.PublishStream()
        for method in ("PublishStream", "Subscribe"):
            path = f"/waterclock.v1.Broker/{method}"
            await asyncio.to_thread(send_and_hear_the_end, it.server.grpc_port, path)

        arrow = arrow_of(Message(b"x", message_id=b"1"))
        batch = pb.PublishBatchRequest(topic="orders", arrow=arrow)
        await other.write(pb.PublishStreamRequest(sequence=1, batch=batch))
        assert (await other.read()).published.count == 1
        other.cancel()
