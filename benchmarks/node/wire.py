"""Raw calls to a node: requests encoded before the clock starts, answers decoded after it stops.

This is to gRPC and to the native protocol what `peers/wire.py` is to sockets. The client library is
measured by name.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice

import grpc

from waterclock.client.client import Client
from waterclock.client.native.link import NodeLink, dial
from waterclock.client.streams.calls import reachable
from waterclock.v1 import admin_pb2, admin_pb2_grpc, broker_pb2

PUBLISH_STREAM = "/waterclock.v1.Broker/PublishStream"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@asynccontextmanager
async def opened(port: int, *, is_own: bool = False) -> AsyncIterator[grpc.aio.Channel]:
    """Connect; channels of one address share a connection, unless this is to have its own."""
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", int(is_own))]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        yield channel


@asynccontextmanager
async def fresh_topic(channel: grpc.aio.Channel, *, partitions: int = 1) -> AsyncIterator[str]:
    """Create a topic; it goes at the end, so that rounds do not fill the disk."""
    admin = admin_pb2_grpc.AdminStub(channel)
    topic = f"bench-{os.urandom(6).hex()}"
    settings = admin_pb2.TopicSettings(partitions=partitions)
    await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic, settings=settings))
    try:
        yield topic
    finally:
        await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=topic))


def publish_request(
    topic: str, body: bytes, *, partition: int = 0, is_native: bool = False
) -> bytes:
    """Encode a batch for a stream, or for a link."""
    batch = broker_pb2.PublishBatchRequest(topic=topic, arrow=body, partition=partition)
    if is_native:
        return batch.SerializeToString()
    return broker_pb2.PublishStreamRequest(batch=batch).SerializeToString()


async def call_all(
    channel: grpc.aio.Channel, method: str, requests: Sequence[bytes], *, window: int
) -> list[bytes]:
    """Make calls, at most a window of them unanswered; give the answers, in no order."""
    # Without serializers, bytes go out and come in as they are.
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    waiting = iter(requests)

    async def lane() -> list[bytes]:
        return [await call(request) for request in waiting]

    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(lane()) for _ in range(window)]
    return [answer for task in lanes for answer in task.result()]


async def stream_all(
    channel: grpc.aio.Channel, requests: Sequence[bytes], *, window: int
) -> list[bytes]:
    """Publish batches over one stream, at most a window of them unanswered; give the answers."""
    open_stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    open_stream = channel.stream_stream(PUBLISH_STREAM)
    stream = open_stream()
    waiting = iter(requests)
    answers: list[bytes] = []
    for request in islice(waiting, window):
        await stream.write(request)
    while len(answers) < len(requests):
        answer = await stream.read()
        assert isinstance(answer, bytes), "the node ended the stream"
        answers.append(answer)
        if (next_request := next(waiting, None)) is not None:
            await stream.write(next_request)
    await stream.done_writing()
    return answers


@asynccontextmanager
async def linked(channel: grpc.aio.Channel, port: int) -> AsyncIterator[NodeLink]:
    """Have a link of the native protocol to the node."""
    node = await admin_pb2_grpc.AdminStub(channel).GetNode(admin_pb2.GetNodeRequest())
    address = f"127.0.0.1:{port}"
    link = await dial(reachable(node.http_address, address), address, None, is_alone=True)
    try:
        yield link
    finally:
        link.close("all is measured")
        await link.ended.wait()


async def link_all(link: NodeLink, requests: Sequence[bytes], *, window: int) -> int:
    """Publish batches over a link, at most a window of them unanswered; give how many messages
    were taken."""
    waiting = iter(requests)

    async def lane() -> int:
        return sum([(await link.publish(request)).count for request in waiting])

    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(lane()) for _ in range(window)]
    return sum(task.result() for task in lanes)


async def until_linked(client: Client) -> None:
    """Wait until a client goes by the native protocol."""
    connection = client._connection
    for links in (connection.native, connection.publish_links):
        connection.want_link(links)
        while links.find(connection.address) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def published(answers: Sequence[bytes]) -> int:
    """Give how many messages were taken, by the answers of a stream."""
    responses = [broker_pb2.PublishStreamResponse.FromString(answer) for answer in answers]
    refused = [answer.problem for answer in responses if answer.HasField("problem")]
    if refused:
        raise RuntimeError(f"the node refused {len(refused)} batches: {refused[0].message}")
    return sum(answer.published.count for answer in responses)
