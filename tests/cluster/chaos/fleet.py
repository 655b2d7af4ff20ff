"""The nodes of the rounds: `waterclock up`, each in its namespace, with its folder and its log."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.chaos.load import Node
from tests.cluster.chaos.network import Namespaces
from tests.cluster.chaos.requests import HTTP_PORT, Answer, Broken, NotAsked, ask
from tests.kit.processes import Process, bugs_in, last_words

START_S_MAX = 60.0
END_S_MAX = 40.0
GOSSIP_PORT = 7946
WATERCLOCK = "waterclock"
PLANTED = "tests.cluster.chaos.planted"


class ClusterNode(Node):
    """A node of the cluster, over all its runs."""

    def __init__(
        self,
        index: int,
        network: Namespaces,
        folder: Path,
        more: Mapping[str, object],
        program: Sequence[str] = (WATERCLOCK,),
    ) -> None:
        """`more` are settings of its own; `program` is the module that it is, and its arguments."""
        super().__init__(f"node-{index + 1}", network.hosts[index])
        self.index = index
        self.log = folder / f"{self.name}.log"
        self._prefix = network.command(index)
        seeds = ",".join(f"{host}:{GOSSIP_PORT}" for host in network.hosts[:3])
        settings = {
            "node.name": self.name,
            "server.host": self.host,
            "cluster.http_port": HTTP_PORT,
            "cluster.bootstrap_nodes": seeds,
            **more,
        }
        self._module, *self._words = program
        self.data = folder / self.name
        self._words += ["up", "--json", "--insecure", "--verbose", "--data", str(self.data)]
        for name, value in settings.items():
            self._words += ["--set", f"{name}={value}"]
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The run that is, or was the last."""
        assert self._process is not None
        return self._process

    @property
    def is_running(self) -> bool:
        """It was started and has not ended."""
        return self._process is not None and self._process.is_running

    async def start(self) -> None:
        """Start it, and wait until it takes requests."""
        self._process = Process(
            self._module, *self._words, log=self.log, has_output=True, prefix=self._prefix
        )
        async with asyncio.timeout(START_S_MAX):
            line = await asyncio.to_thread(self._process.line)
        if not line:
            raise RuntimeError(f"{self.name} does not start: {last_words(self.log, 12)}")
        json.loads(line)

    async def leave(self) -> None:
        """Tell it to stop, and wait until it has."""
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, END_S_MAX)

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            self._process.kill()

    def bugs(self) -> list[str]:
        """Return what its log says of things that nobody planned."""
        return bugs_in(self.log) if self.log.exists() else []

    async def ring(self) -> frozenset[str]:
        """Return the nodes that it takes for all there are; nothing if it does not answer."""
        try:
            answer: Answer = await ask(self.host, "GET", "/cluster/ring", within_s=6.0)
        except (NotAsked, Broken):
            return frozenset()
        if answer.status != 200:
            return frozenset()
        return frozenset(each["name"] for each in answer.value["nodes"])
