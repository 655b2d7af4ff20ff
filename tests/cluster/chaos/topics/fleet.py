"""The processes of a round of topics: nodes, and an etcd, each in a namespace of its own.

The data of the last node is on a small disk of its own, which can be filled.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.cluster.chaos.fleet import END_S_MAX, ClusterNode
from tests.cluster.chaos.network import Namespaces
from tests.cluster.chaos.requests import Broken, NotAsked, ask
from tests.cluster.chaos.topics.plan import LEASE_MS, NODES
from tests.cluster.coordinator.etcd_servers import programs
from tests.kit.processes import Signalled, last_words

CLOCKED = "tests.cluster.chaos.topics.clocked"
PLANTED = "tests.cluster.chaos.topics.planted"
ETCD = NODES
"""The index of its namespace, behind those of the nodes."""
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
START_S_MAX = 30.0
LOOK_S = 0.1
SMALL_MB = 256
SMALL = NODES - 1


class EtcdProcess:
    """One member, over all its runs. It keeps what it has on disk."""

    name = "etcd"

    def __init__(self, network: Namespaces, folder: Path) -> None:
        self.host = network.hosts[ETCD]
        self.endpoint = f"{self.host}:{ETCD_PORT}"
        self.log = folder / "etcd.log"
        url, peer = f"http://{self.endpoint}", f"http://{self.host}:{ETCD_PEER_PORT}"
        self._command = [
            *network.command(ETCD), programs().find("etcd"), f"--data-dir={folder / 'etcd'}",
            "--name=one", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=one={peer}", "--heartbeat-interval=100", "--election-timeout=500",
        ]  # fmt: skip
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> Signalled:
        """The run that is, or was the last."""
        assert self._running is not None
        return Signalled(self._running.pid)

    @property
    def is_running(self) -> bool:
        """It was started and has not ended."""
        return self._running is not None and self._running.poll() is None

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        self._launch()
        deadline_s = time.monotonic() + START_S_MAX
        while not await asyncio.to_thread(self._is_healthy):
            if not self.is_running or time.monotonic() > deadline_s:
                raise RuntimeError(f"etcd does not start: {last_words(self.log, 5)}")
            await asyncio.sleep(LOOK_S)

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """End it as a crash would."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def _is_healthy(self) -> bool:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=2) as answer,
        ):
            return bool(json.load(answer)["health"] == "true")
        return False


class TopicNode(ClusterNode):
    """A node that replicates topics, or one that is alone and needs no etcd."""

    def __init__(
        self, index: int, network: Namespaces, folder: Path, etcd: str, plant: str = ""
    ) -> None:
        self.lock = asyncio.Lock()
        """Held while something is done to it."""
        self._clock_file = folder / f"node-{index + 1}.clock"
        self._has_plant = bool(plant)
        settings: dict[str, object] = {"delivery.ack_timeout": "5s"}
        if etcd:
            settings |= {
                "cluster.etcd": etcd, "cluster.expect": NODES, "cluster.lease": f"{LEASE_MS}ms",
            }  # fmt: skip
        else:
            settings["cluster.bootstrap_nodes"] = ""
        program = (PLANTED, plant) if plant else (CLOCKED, str(self._clock_file))
        super().__init__(index, network, folder, settings, program)

    def set_clock(self, added_ms: int) -> None:
        """Set its clock wrong; with 0, right."""
        self._clock_file.write_text(str(added_ms))
        if self.is_running:
            self.process.send(signal.SIGUSR1)

    def tell_tasks(self) -> None:
        """Have it write to its log what each of its tasks waits for."""
        if self.is_running and not self._has_plant:
            self.process.send(signal.SIGUSR2)

    async def state(self, topic: str) -> list[str]:
        """Return what it says of the groups of a topic, and of all partitions."""
        said = []
        for path in (f"/topics/{topic}/groups", "/cluster/replication", "/cluster/members"):
            try:
                answer = await ask(self.host, "GET", path, within_s=3.0)
                said.append(f"{self.name}: {path}: {answer.status} {answer.value}")
            except (NotAsked, Broken) as error:
                said.append(f"{self.name}: {path}: {error!r}")
        return said

    def wipe(self) -> None:
        """Empty its disk; it must not run."""
        assert not self.is_running
        for each in self.data.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    async def stop(self) -> None:
        """Stop it in good order."""
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, END_S_MAX)

    def fill(self) -> None:
        """Leave no room on its disk."""
        with (self.data / "filler").open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
                file.flush()

    def unfill(self) -> None:
        """Give back the room."""
        (self.data / "filler").unlink(missing_ok=True)

    async def is_ready(self) -> bool:
        """Say whether it takes requests."""
        try:
            answer = await ask(self.host, "GET", "/health/ready", within_s=3.0)
        except (NotAsked, Broken):
            return False
        return answer.status == 200

    async def partitions(self) -> list[dict[str, Any]]:
        """Return how all partitions stand, as it knows; nothing if it does not say."""
        try:
            answer = await ask(self.host, "GET", "/cluster/replication", within_s=3.0)
        except (NotAsked, Broken):
            return []
        return list(answer.value["partitions"]) if answer.status == 200 else []


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Have a small disk in a folder while inside."""
    folder.mkdir(parents=True)
    options = f"size={SMALL_MB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "waterclock", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)
