"""The etcd of a local cluster, which topics of several nodes need: one member, found on the path.

It is there before the nodes are and until the last of them has ended, for they tell it when they
leave. Nodes go on while it is away, so one that ends by itself is started again; one that does not
start at all is an error. It listens on loopback only, and asks nobody who they are.
"""

import asyncio
import json
import shutil
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waterclock.cli.commands.cluster.plan import free_ports, local_host
from waterclock.cli.commands.cluster.processes import start_process
from waterclock.model.errors import BadConfig, NodeFailed, WaterclockError
from waterclock.server.addresses import address_of

if TYPE_CHECKING:
    from waterclock.model.config import Config

PROGRAM: Final = "etcd"
HOW_TO_GET: Final = (
    "there is no etcd on the path: apt install etcd-server, or a release from "
    "https://github.com/etcd-io/etcd/releases"
)
START_S_MAX: Final = 30.0
PAUSE_S: Final = 0.1
ASK_S: Final = 2.0
RESTART_S: Final = 1.0
"""Before an etcd that ended by itself is started again."""


@dataclass(frozen=True, slots=True)
class LocalEtcd:
    """Where it is, before it is started."""

    program: str
    folder: Path
    """Its data; what it says is in a file beside it."""
    endpoint: str
    """`host:port` for nodes."""
    peer: str
    """`host:port` for other members, of which there are none."""

    def command(self) -> list[str]:
        """Return what starts it."""
        client_url, peer_url = f"http://{self.endpoint}", f"http://{self.peer}"
        return [
            self.program, f"--data-dir={self.folder}", "--name=local",
            f"--listen-client-urls={client_url}", f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=local={peer_url}", "--logger=zap", "--log-level=warn",
            "--heartbeat-interval=100", "--election-timeout=500",
            "--auto-compaction-mode=periodic", "--auto-compaction-retention=1h",
        ]  # fmt: skip

    @property
    def log(self) -> Path:
        """The file that has what it says."""
        return self.folder.with_suffix(".log")


def etcd_for(config: "Config", held: ExitStack, *, is_wanted: bool | None) -> LocalEtcd | None:
    """Return the etcd to be started; None: there is none, or the nodes have one, or none is wanted.

    Wanted is None if nobody said; if it is True and there is none, BadConfig is raised. Its ports
    are held until the end of `held`.
    """
    if is_wanted is False or config.cluster.etcd:
        return None
    program = shutil.which(PROGRAM)
    if program is None:
        if is_wanted:
            raise BadConfig("cluster.etcd", HOW_TO_GET)
        return None
    host = local_host(config)
    client_port, peer_port = free_ports(host, 2, held)
    folder = Path(config.node.data_folder).absolute() / "etcd"
    return LocalEtcd(program, folder, address_of(host, client_port), address_of(host, peer_port))


@dataclass(slots=True)
class RunningEtcd:
    """It, as a process that is started again whenever it ends."""

    etcd: LocalEtcd
    warn: Callable[[str], None]
    process: Process | None = field(default=None, init=False)

    async def start(self) -> None:
        """Start it and wait until it answers; raises NodeFailed if it does not."""
        self.etcd.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.etcd.log.open("ab") as log:
            self.process = await start_process(self.etcd.command(), stdout=log, stderr=log)
        try:
            async with asyncio.timeout(START_S_MAX):
                while not await _is_healthy(self.etcd.endpoint):
                    if self.process.returncode is not None:
                        break
                    await asyncio.sleep(PAUSE_S)
                else:
                    return
        except TimeoutError:
            self.process.kill()
        raise NodeFailed(f"etcd did not start: {self.etcd.log} says why")

    def facts(self) -> dict[str, object]:
        """Return what a program needs to know of it."""
        assert self.process is not None
        return {"endpoint": self.etcd.endpoint, "pid": self.process.pid}

    async def supervise(self) -> None:
        """Start it again whenever it ends."""
        while True:
            assert self.process is not None
            code = await self.process.wait()
            self.warn(f"etcd ended ({code}) and is started again; topics keep their leaders")
            await asyncio.sleep(RESTART_S)
            with suppress(NodeFailed):  # told by the next turn
                await self.start()
                self.warn("etcd is back")

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.terminate()
            await self.process.wait()


@asynccontextmanager
async def running_etcd(
    etcd: LocalEtcd | None, warn: Callable[[str], None]
) -> AsyncIterator[RunningEtcd | None]:
    """Have it run while inside, if there is one."""
    if etcd is None:
        yield None
        return
    running = RunningEtcd(etcd, warn)
    try:
        await running.start()
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(running.supervise())
            yield running
            supervising.cancel()
    finally:
        await running.stop()


async def _is_healthy(endpoint: str) -> bool:
    from waterclock.client.streams.http_pool import HttpPool
    from waterclock.client.streams.http_request import HttpRequest

    pool = HttpPool(f"http://{endpoint}", connections_max=1)
    try:
        answer = await pool.ask(HttpRequest("GET", "/health"), timeout_s=ASK_S)
    except WaterclockError:
        return False
    finally:
        pool.close()
    return answer.status == 200 and bool(json.loads(answer.body)["health"] == "true")
