"""Three nodes of ours and an etcd, each a process of its own that can be killed and stopped."""

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.node.running import is_ready
from benchmarks.peers.cache import Absent, Programs, debian, program_version
from benchmarks.peers.server import Server, free_port, started

NODES = 3
WAIT_S_MAX = 120.0
PAUSE_S = 0.05
GOSSIP_SENT = 'waterclock_gossip_bytes_total{direction="sent"}'
Command = list[str | Path]


class Layout:
    """Ports of everyone, and how each is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: Programs = debian("etcd-server", ["etcd"])
        self._client, self._peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        names = [f"node-{number}" for number in range(1, NODES + 1)]
        self.ports = {name: (free_port(), free_port()) for name in names}
        """By node: gRPC and HTTP."""
        self._gossip = {name: free_port() for name in names}
        self._links = {name: free_port() for name in names}

    @property
    def version(self) -> str:
        return f"etcd {program_version(self.programs, 'etcd', '--version')}"

    @property
    def etcd_port(self) -> int:
        return int(self._client.rpartition(":")[2])

    def etcd(self) -> Command:
        """Give the command that runs etcd."""
        return [
            self.programs.find("etcd"), f"--data-dir={self.folder / 'etcd'}", "--name=local",
            "--logger=zap", "--log-level=warn", f"--listen-client-urls={self._client}",
            f"--advertise-client-urls={self._client}", f"--listen-peer-urls={self._peer}",
            f"--initial-advertise-peer-urls={self._peer}", f"--initial-cluster=local={self._peer}",
        ]  # fmt: skip

    def node(self, name: str) -> Command:
        """Give the command that runs a node."""
        settings: dict[str, object] = {
            "node.name": name,
            "cluster.preset": "local",
            "cluster.etcd": self._client.removeprefix("http://"),
            "cluster.expect": NODES,
            "cluster.bootstrap_nodes": ",".join(f"127.0.0.1:{p}" for p in self._gossip.values()),
            "cluster.gossip_port": self._gossip[name],
            "cluster.peer_port": self._links[name],
        }
        grpc_port, http_port = map(str, self.ports[name])
        words: Command = [sys.executable, "-m", "waterclock", "up", "--data", self.folder / name]
        words += [f"--set={key}={value}" for key, value in settings.items()]
        return [*words, "--grpc-port", grpc_port, "--http-port", http_port]

    def are_ready(self) -> bool:
        """Tell whether all nodes take requests."""
        return all(is_ready(http_port) for _, http_port in self.ports.values())


class Fleet:
    """The running processes."""

    def __init__(self, layout: Layout, stack: ExitStack) -> None:
        self.layout = layout
        self._stack = stack
        self._servers: dict[str, Server] = {}

    @property
    def names(self) -> list[str]:
        return list(self.layout.ports)

    def address(self, name: str) -> str:
        """Give where a node answers calls of clients."""
        return f"127.0.0.1:{self.layout.ports[name][0]}"

    def server(self, name: str) -> Server:
        """Give a node's process."""
        return self._servers[name]

    def start(self, name: str) -> None:
        """Start a node, and do not wait for it."""
        folder, port = self.layout.folder / f"{name}-output", self.layout.ports[name][0]
        run = started(self.layout.node(name), folder=folder, port=port, is_ready=lambda: True)
        self._servers[name] = self._stack.enter_context(run)

    def kill(self, name: str) -> None:
        """End a node at once, as a crash would."""
        self._servers[name].kill()

    def stop(self, name: str) -> None:
        """Let a node stand still, as a machine that hangs does."""
        os.killpg(self._servers[name].group, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Let it go on."""
        os.killpg(self._servers[name].group, signal.SIGCONT)

    def restart(self, name: str) -> None:
        """Ask a node to end, as an update does, and start it again; wait until it is in step."""
        self._servers[name].stop()
        self.start(name)
        self.wait_whole()

    def states_of(self, name: str) -> list[str]:
        """Give what the other nodes take a node for."""
        others = [self.layout.ports[each][1] for each in self.names if each != name]
        return [members_of(http_port).get(name, "gone") for http_port in others]

    def gossip_bytes(self) -> dict[str, float]:
        """Give how many bytes of gossip each node has sent so far."""
        return {name: gossip_bytes_of(port) for name, (_, port) in self.layout.ports.items()}

    def partitions(self, of: str | None = None) -> list[dict[str, Any]]:
        """Give the partitions as a node sees them; the first that answers, if none is named."""
        for name in self.names if of is None else [of]:
            try:
                return partitions_of(self.layout.ports[name][1])
            except OSError:
                continue
        return []

    def leader(self, topic: str) -> str:
        """Return who leads a topic of one partition, once someone does."""
        found: list[str] = []

        def is_led() -> bool:
            found[:] = [p["leader"] for p in self.partitions() if p["topic"] == topic]
            return bool(found and found[0])

        wait_until(is_led, f"someone leads {topic}")
        return found[0]

    def wait_whole(self) -> None:
        """Return once every partition is led and every voter has all of it."""
        wait_until(self.layout.are_ready, "all nodes are ready")
        wait_until(self._is_whole, "all replicas are in step")

    def _is_whole(self) -> bool:
        found = self.partitions()
        return bool(found) and all(
            part["leader"] and all(r["isLinked"] and not r["lag"] for r in part["replicas"])
            for part in found
        )


@contextmanager
def running_fleet(folder: Path) -> Iterator[Fleet]:
    """Run etcd and the nodes until the end of the block."""
    layout = Layout(folder)
    with ExitStack() as stack:
        its = started(
            layout.etcd(), folder=folder / "etcd-output", port=layout.etcd_port,
            environ=layout.programs.environ(),
        )  # fmt: skip
        stack.enter_context(its)
        fleet = Fleet(layout, stack)
        for name in fleet.names:
            fleet.start(name)
        fleet.wait_whole()
        yield fleet


def wait_until(check: Callable[[], bool], what: str) -> None:
    """Return once the check holds; raises Absent after long."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not check():
        if time.monotonic() > deadline:
            raise Absent(f"it is not so after {WAIT_S_MAX:.0f} s that {what}")
        time.sleep(PAUSE_S)


def partitions_of(http_port: int) -> list[dict[str, Any]]:
    """Ask a node for the replicated partitions."""
    found: list[dict[str, Any]] = json.loads(_get(http_port, "/cluster/replication")).get(
        "partitions", []
    )
    return found


def members_of(http_port: int) -> dict[str, str]:
    """Ask a node which members it knows of, each with its state."""
    members = json.loads(_get(http_port, "/cluster/members"))["members"]
    return {each["name"]: each["state"] for each in members}


def gossip_bytes_of(http_port: int) -> float:
    """Ask a node how many bytes of gossip it has sent."""
    lines = _get(http_port, "/metrics").decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(GOSSIP_SENT))


def _get(http_port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("localhost", http_port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()
