"""A task queue beside which the dispatcher is measured: its package, its workers, its messages.

Each has a Redis to itself, all with the same settings, of which only one is at work at a time.
Workers are started anew for each round and asked for once all of them have said that they run, so
that an idle fleet costs the others nothing. A job is the same everywhere: parse the JSON, add one
entry to the output stream, then the library acknowledges.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client import Stopwatch, run_client
from benchmarks.contest import Case
from benchmarks.dispatch_load import Wire
from benchmarks.harness import is_smoke, scaled
from benchmarks.machine import ROOT
from benchmarks.peers.cache import program_version, python
from benchmarks.peers.redis import SETTINGS, programs
from benchmarks.peers.server import Server, free_port, started

WORKERS = 2 if is_smoke() else 4
READY = "ready"
"""A number in Redis: how many worker processes have said that they run."""
WARM_UP = 1_000
COMMANDS_FILE, WARM_UP_FILE = "commands", "warm-up"
PORT_VARIABLE = "BENCH_REDIS_PORT"


@dataclass(frozen=True, slots=True)
class Peer:
    """A task queue, and how it is used best."""

    name: str
    messages: int
    """Of one round, at full scale: some seconds of work."""
    workers: Callable[[int], Sequence[str]]
    """Gives the command line of all workers, for a port of Redis."""
    job: str
    """The module in `peers` that has the job and its messages."""
    note: str
    package: tuple[str, str] | None = None
    """Name and version, if it is not what our own extra installs."""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def opener(self) -> Callable[[Path], AbstractContextManager[Server]]:
        """Start a Redis for it in a folder, and encode the messages."""
        return lambda folder: _opened(self, folder)

    def case(self) -> Case:
        """Give what is measured of it."""
        return Case(f"{self.name}_end_to_end", self.name, self._run, self.note)

    def _run(self, server: Server) -> Stopwatch:
        folder = Path(server.client_environ["BENCH_FOLDER"])
        with fleet(self.workers(server.port), server, folder, environ=self.environ) as workers:
            files = {"commands": str(folder / COMMANDS_FILE), "warm_up": str(folder / WARM_UP_FILE)}
            return run_client("benchmarks.dispatch_load:through", workers, **files)


@contextmanager
def _opened(peer: Peer, folder: Path) -> Iterator[Server]:
    path = [str(python(*peer.package))] if peer.package else []
    with redis_server(folder) as server:
        server.client_environ["PYTHONPATH"] = os.pathsep.join(
            [*path, os.environ.get("PYTHONPATH", "")]
        )
        if peer.package:
            server.version = f"{peer.package[1]} on Redis {server.version}"
        prepare(server, f"benchmarks.peers.{peer.job}:commands", scaled(peer.messages), folder)
        yield server


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """Run a Redis that flushes its file every second, as most do who keep anything in it."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    settings = {**SETTINGS, "appendfsync": "everysec", "port": str(port), "dir": str(folder)}
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    command = [its.find("redis-server"), *flags]
    with started(command, folder=folder, port=port, environ=its.environ()) as server:
        server.version = program_version(its, "redis-server", "--version")
        server.client_environ = {"BENCH_FOLDER": str(folder), PORT_VARIABLE: str(port)}
        yield server


def prepare(server: Server, function: str, messages: int, folder: Path) -> None:
    """Have the commands encoded that publish so many messages, once for all rounds."""
    warm_up = scaled(WARM_UP)
    for name, first, count in ((COMMANDS_FILE, warm_up, messages), (WARM_UP_FILE, 0, warm_up)):
        work = {"file": str(folder / name), "first": first, "count": count}
        run_client(function, server, **work)


def all_have_said_so(wire: Wire) -> bool:
    """Tell whether every worker process has counted itself."""
    return int(wire.ask("GET", READY) or 0) >= WORKERS


@contextmanager
def fleet(
    command: Sequence[str],
    server: Server,
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    is_ready: Callable[[Wire], bool] = all_have_said_so,
) -> Iterator[Server]:
    """Run workers on an empty Redis until the end of the block; begin when all are ready."""
    wire = Wire(server.port)
    wire.ask("FLUSHALL")
    everything = {**os.environ, **server.client_environ, **(environ or {})}
    paths = [str(ROOT), str(ROOT / "src"), everything.get("PYTHONPATH", "")]
    everything["PYTHONPATH"] = os.pathsep.join(paths)
    with started(
        command, folder=folder / "fleet", port=server.port, environ=everything,
        is_ready=lambda: is_ready(wire),
    ) as workers:  # fmt: skip
        workers.client_environ = server.client_environ
        yield workers
    wire.close()
