"""What one node schedules where another leads, cancelled there for it."""

from typing import cast

import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.node.hosts import batch_of
from tests.node.test_replicated_node import DAILY, has_timers, nodes
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig
from waterclock.node.node import Node
from waterclock.node.places import AlonePlaces
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.scheduler import DONE, UNKNOWN
from waterclock.server.cluster.calls.remote_calls import RemoteCalls
from waterclock.server.cluster.calls.remote_cancels import RemoteCancels
from waterclock.server.grpc.scheduler import SchedulerApi
from waterclock.v1 import scheduler_pb2 as pb


class To:
    """Calls that one node answers, as it would those of any other."""

    def __init__(self, node: Node) -> None:
        self._api = SchedulerApi(node)

    async def unary(
        self, node: str, method: str, request: bytes, *, partitions: tuple[int, ...]
    ) -> bytes:
        assert (node, method, partitions) == ("b", "Scheduler/Cancel", (0,))
        answer = await self._api.cancel(pb.CancelRequest.FromString(request))
        return answer.SerializeToString()


class LedByB(AlonePlaces):
    """`b` leads every partition."""

    def leader_of(self, topic: str, partition: int) -> str | None:
        return "b"


def cancels(a: Node, b: Node) -> RemoteCancels:
    return RemoteCancels(cast(RemoteCalls, To(b)), LedByB("a"), a.pending)


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_what_recurs_ends_where_another_node_leads_also_without_dedup(tmp_path, is_enabled):
    async with nodes(tmp_path, dedup=DedupConfig(enabled=is_enabled)) as (cluster, a, b):
        await a.recurrences.put(DAILY)
        await cluster.settled()
        cluster.lead(bytes.fromhex(a.topics.get("t").log_id(0)), "b")
        host = b.topics.get("t").partition(0)
        await until(lambda: has_timers(host))
        a.pending.elsewhere = cancels(a, b)

        assert await a.recurrences.delete("daily")
        assert len(host.scheduler) == 0


async def test_only_the_message_of_the_id_is_cancelled_and_only_where_it_is_said_to_be(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        topic = await a.topics.ensure("t")
        due_ms = Millis(a.clock.now_ms() + 60_000)
        messages = [Message(b"", message_id=b"%d" % n, due_ms=due_ms) for n in range(2)]
        appended = await topic.topic.partition(0).publish(batch_of(*messages))
        first, second = map(int, appended.offsets)
        await cluster.settled()
        cluster.lead(bytes.fromhex(a.topics.get("t").log_id(0)), "b")
        host = b.topics.get("t").partition(0)
        await until(lambda: has_timers(host))
        ask = cancels(a, b).cancel
        mine = a.topics.get("t").partition(0)

        # As if the topic was made anew, and others are where it was.
        assert await ask(mine, Named(b"0", position=(0, second))) == UNKNOWN
        assert await ask(mine, Named(b"gone", position=(0, first))) == UNKNOWN
        assert len(host.scheduler) == 2
        assert await ask(mine, Named(b"1", position=(0, second))) == DONE
        assert await ask(mine, Named(position=(0, first))) == DONE
        assert len(host.scheduler) == 0
