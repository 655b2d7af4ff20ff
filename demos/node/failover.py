"""The step about a leader that goes for good: of three nodes that keep a topic, two go on."""

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from demos.node.node_process import NodeProcess
from demos.node.orders import TOPIC, Orders, work_through
from demos.node.steps import FailedOver
from waterclock.cli.commands.cluster.etcd import HOW_TO_GET, PROGRAM, LocalEtcd, running_etcd
from waterclock.cli.commands.cluster.plan import LOOPBACK, free_ports
from waterclock.client.client import Client, connect

NODES = 3


async def fail_over(
    folder: Path, settings: tuple[str, ...], show: Callable[[str], None]
) -> FailedOver:
    """Kill the leader of a partition while orders are published and consumed, and count; needs an
    etcd on the path."""
    program = shutil.which(PROGRAM)
    if program is None:
        return FailedOver(missing=HOW_TO_GET)
    async with AsyncExitStack() as stack:
        held = stack.enter_context(ExitStack())
        client_port, peer_port, *gossip_ports = free_ports(LOOPBACK, 2 + NODES, held)
        endpoint = f"{LOOPBACK}:{client_port}"
        etcd = LocalEtcd(program, folder / "etcd", endpoint, f"{LOOPBACK}:{peer_port}")
        await stack.enter_async_context(running_etcd(etcd, show))
        seeds = ",".join(f"{LOOPBACK}:{port}" for port in gossip_ports)
        nodes = {}
        for number, port in enumerate(gossip_ports, start=1):
            name = f"node-{number}"
            its = (
                f"node.name={name}", "cluster.preset=local", f"cluster.etcd={endpoint}",
                f"cluster.expect={NODES}", f"cluster.bootstrap_nodes={seeds}",
                f"cluster.gossip_port={port}", "cluster.peer_port=0",
            )  # fmt: skip
            node = NodeProcess(folder / name, folder / f"{name}.log", (*settings, *its))
            nodes[name] = await stack.enter_async_context(node)
        async with asyncio.TaskGroup() as tasks:
            for node in nodes.values():
                tasks.create_task(node.start())
        addresses = [node.address for node in nodes.values()]
        client = await stack.enter_async_context(connect(addresses))
        return await _fail_over(client, nodes, show)


async def _fail_over(
    client: Client, nodes: dict[str, NodeProcess], show: Callable[[str], None]
) -> FailedOver:
    await client.topics.create(TOPIC, partitions=NODES)
    leader, killed_at = "", 0.0

    async def kill(orders: Orders) -> None:
        nonlocal leader, killed_at
        leader, _ = await _led(client)
        await nodes[leader].kill()
        killed_at = time.perf_counter()
        show(f"killed {leader} after {len(orders.acknowledged):,} acknowledgements")

    orders = await work_through(client, kill)
    successor, epoch = await _led(client)
    return FailedOver(leader, successor, epoch, orders.counted(killed_at, 0.0))


async def _led(client: Client) -> tuple[str, int]:
    """Return who leads the first partition, and under which epoch."""
    views = await client.cluster.replication()
    (view,) = (each for each in views if (each.topic, each.partition) == (TOPIC, 0))
    return view.leader, view.epoch
