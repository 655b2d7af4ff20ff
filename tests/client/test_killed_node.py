"""A node is killed, or stopped, and another address answers: the program hears nothing of it."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack

from tests.cli.nodes import RunningNode, running
from tests.client.doors import doors_to
from waterclock.client.client import Client, connect
from waterclock.client.settings import ClientSettings

QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=50)
COUNT = 600
AT_ONCE = 100
KEYS = 7


def port_of(node: RunningNode) -> int:
    return int(node.address.rpartition(":")[2])


async def publish_all(client: Client, halfway: Callable[[], None]) -> None:
    """Publish numbers, some at a time; call back while some are on their way."""
    for start in range(0, COUNT, AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            sent = [
                tasks.create_task(client.publish("orders", b"%d" % n, key=b"%d" % (n % KEYS)))
                for n in range(start, start + AT_ONCE)
            ]
            if start == COUNT // 2:
                await sent[0]  # the others are on their way, or behind those of their key
                halfway()


async def consume_all(client: Client) -> None:
    """Take messages until each has come, at least once."""
    seen: set[bytes | None] = set()
    async with client.subscribe("orders", group="billing", prefetch=50) as messages:
        async for message in messages:
            seen.add(message.value)
            await message.ack()
            if len(seen) == COUNT:
                return


async def test_what_a_killed_node_had_not_answered_is_stored_once_and_in_order(tmp_path):
    with ExitStack() as nodes:
        node = nodes.enter_context(running(tmp_path))
        async with (
            doors_to(port_of(node)) as (first, second),
            connect([first.address, second.address], QUICK) as client,
        ):
            async with asyncio.TaskGroup() as tasks:

                def move() -> None:
                    """Kill the node, and start it again behind the second door."""
                    node.process.kill()
                    node.process.wait()
                    first.shut()
                    again = asyncio.to_thread(nodes.enter_context, running(tmp_path))
                    starting = tasks.create_task(again)
                    starting.add_done_callback(lambda it: second.lead_to(port_of(it.result())))

                tasks.create_task(consume_all(client))
                tasks.create_task(publish_all(client, move))

            rows = [(row.key, int(row.value or b"")) async for row in client.replay("orders")]
            assert sorted(number for _, number in rows) == [*range(COUNT)]
            for each in {key for key, _ in rows}:
                numbers = [number for key, number in rows if key == each]
                assert numbers == sorted(numbers)


async def test_a_node_that_is_stopped_is_left_before_calls_are_out_of_time(tmp_path):
    with running(tmp_path / "a") as one, running(tmp_path / "b") as two:
        async with connect([one.address, two.address]) as client:
            await client.publish("orders", b"0")
            stopped = one if client._connection.address == one.address else two
            async with client.subscribe("others", group="billing") as messages:
                os.kill(stopped.process.pid, signal.SIGSTOP)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(client.publish("others", b"1"))
                    tasks.create_task(client.topics.list())
                    assert (await anext(messages)).value == b"1"
            assert client._connection.address != stopped.address
