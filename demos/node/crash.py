"""The step about a crash: a node killed with SIGKILL while it works, and started again."""

import time
from collections.abc import Callable

from demos.node.node_process import NodeProcess
from demos.node.orders import TOPIC, Orders, work_through
from demos.node.steps import Crashed
from waterclock.client.client import Client

PARTITIONS = 2


async def crash(
    client: Client, node: NodeProcess, show: Callable[[str], None]
) -> tuple[Crashed, set[bytes]]:
    """Kill the node while orders are published and consumed, start it again, and count; return
    also the ids of what was acknowledged."""
    await client.topics.create(TOPIC, partitions=PARTITIONS)
    killed_at = ready_ms = 0.0

    async def kill(orders: Orders) -> None:
        nonlocal killed_at, ready_ms
        await node.kill()
        killed_at = time.perf_counter()
        show(f"killed after {len(orders.acknowledged):,} acknowledgements; starting again")
        ready_ms = await node.start()
        show("it is back; publishing and consuming")

    orders = await work_through(client, kill)
    return orders.counted(killed_at, ready_ms), set(orders.acknowledged)
