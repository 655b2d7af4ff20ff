"""Three whole nodes on a real etcd: two in this process, one in its own, which may be killed."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.server import free_port
from tests.cluster.joined import config_of
from tests.cluster.running_nodes import RunningNode
from waterclock.model.config import Config
from waterclock.node.node import Node

PROGRAM = """
import sys, uvloop
from pathlib import Path
from typing import NamedTuple
from tests.cluster.three_nodes import config_in_cluster
from waterclock.server.process import run_node
folder, name, etcd, gossip_port = sys.argv[1:]
config = config_in_cluster(Path(folder), name, etcd, int(gossip_port))
uvloop.run(run_node(config, on_ready=lambda at: print(at.http, at.grpc, flush=True)))
"""


def config_in_cluster(folder: Path, name: str, etcd: str, gossip_port: int) -> Config:
    """Return the configuration of one of three nodes, which meet by their etcd."""
    cluster = {
        "name": "three",
        "etcd": (etcd,),
        "expect": 3,
        "bootstrap_nodes": (),
        "gossip_port": gossip_port,
    }
    return config_of(folder, name, cluster=cluster)


@contextmanager
def node_process(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Run a node in a process of its own, which is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class ThreeNodes(NamedTuple):
    """Nodes a and b, and the process that is c."""

    nodes: list[Node]
    http: list[int]
    """The ports of all three."""
    grpc: list[str]
    process: "subprocess.Popen[str]"


@asynccontextmanager
async def three_nodes(folder: Path, etcd: str) -> AsyncIterator[ThreeNodes]:
    """Run two nodes in this process and one that may be killed."""
    ports = [free_port() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        with node_process(folder, "c", etcd, ports[2]) as process:
            # Side by side: a cluster forms when all of them are there.
            running = [
                RunningNode(config_in_cluster(folder, name, etcd, port))
                for name, port in zip("ab", ports, strict=False)
            ]
            for each in running:
                tasks.create_task(each.run())
            started = [await each.started for each in running]
            assert process.stdout is not None
            said = await asyncio.to_thread(process.stdout.readline)
            http, grpc = said.split()
            yield ThreeNodes(
                [node for node, _ in started],
                [*(server.http_port for _, server in started), int(http.rpartition(":")[2])],
                [*(server.addresses.grpc for _, server in started), grpc],
                process,
            )
            for each in running:
                each.end()
