"""A node that is stopped for longer than sessions and leases last, and goes on."""

import asyncio

from tests.integration.consumer import Consumer
from tests.integration.link import Link
from tests.integration.node_process import NodeProcess
from tests.kit.verdict import Findings
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb

SETTINGS = {
    "log": {"preallocate_bytes": 64 << 10},
    "delivery": {"ack_timeout_ms": 2_000, "max_retries": 1, "retry_delay_ms": 100},
    "groups": {"session_timeout_ms": 2_000},
}
AWAY_S = 2.6
"""Longer than a session, and than a lease."""


async def test_members_of_a_node_that_was_stopped_keep_what_they_hold(tmp_path):
    node, link = NodeProcess(tmp_path, SETTINGS), Link(Findings())
    try:
        await node.start()
        await link.open(node.address)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            consumer = Consumer(link.broker, "work")
            consumer.is_acking = False
            await consumer.open(tasks)
            held = pb.Message(message_id=b"held", value=b"v")
            await link.broker.Publish(pb.PublishRequest(topic="work", message=held))
            await consumer.until({b"held"})

            node.process.pause()
            await asyncio.sleep(AWAY_S)  # it is away; nothing is waited for
            node.process.resume()
            # It has run on once this is answered.
            await link.admin.GetGroup(ap.GetGroupRequest(topic="work", group="g"))
            node.process.pause()
            await asyncio.sleep(AWAY_S)
            await consumer.ack(0)  # it waits in the socket of the node
            node.process.resume()

            after = pb.Message(message_id=b"after", value=b"v")
            await link.broker.Publish(pb.PublishRequest(topic="work", message=after))
            await consumer.until({b"after"})
            group = await link.admin.GetGroup(ap.GetGroupRequest(topic="work", group="g"))
            assert (group.generation, len(group.members)) == (1, 1)
            assert group.partitions[0].committed == 1
            assert [(got.message_id, got.attempt) for got in consumer.got] == [
                (b"held", 1),
                (b"after", 1),
            ]
            await consumer.close()
        assert node.bugs() == [], node.last_words(40)
        assert "paused ms=" in node.log_file.read_text()
    finally:
        await link.close()
        await node.kill()
