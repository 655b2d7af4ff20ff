"""The processes that share one machine: how many, where each keeps its data, and how it is started.

The first has the data folder itself, so that a node that was alone goes on as one of several; the
others have folders below it, beside the journal of what they agreed on. Each keeps its name and its
folder for life: a partition is in one of them and nowhere else.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from waterclock.cli.commands.cluster.plan import LOOPBACK, PORT_MAX, free_ports
from waterclock.model.errors import BadConfig, BadInput
from waterclock.server.addresses import address_of, bind_errors, check_free
from waterclock.server.cluster.processes.neighbours import process_name

if TYPE_CHECKING:
    from waterclock.model.config import Config

AUTO: Final = "auto"
PROCESSES_MAX: Final = 64
FOLDER: Final = "processes"
"""In the data folder: the journal, and the folders of all processes but the first."""


class Process(NamedTuple):
    """One process, before it is started."""

    number: int
    data: Path
    gossip: str
    own_http_port: int
    """0: it says itself what it got."""

    @property
    def name(self) -> str:
        """What it is called."""
        return process_name(self.number)


class SharedPorts(NamedTuple):
    """What clients reach all processes by."""

    grpc: int
    http: int


def count_of(wanted: str) -> int:
    """Return how many processes are wanted: a number, or `auto` for one on each core."""
    if wanted == AUTO:
        return min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
    if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted) <= PROCESSES_MAX:
        raise BadInput(f"--processes takes a number from 1 to {PROCESSES_MAX}, or {AUTO}")
    return int(wanted)


def check_alone(config: "Config") -> None:
    """Raise BadConfig if nodes elsewhere are named: processes of one machine are by themselves."""
    for setting in ("etcd", "bootstrap_nodes"):
        if getattr(config.cluster, setting):
            raise BadConfig(
                f"cluster.{setting}",
                "names nodes elsewhere, and --processes is for one machine: "
                "there, run a node for each core, with ports of its own",
            )


def plan(config: "Config", count: int, held: ExitStack) -> list[Process]:
    """Return so many processes; raises BadConfig if a port that one would have is taken. Ports that
    were drawn are held until the end of `held`."""
    data, host = Path(config.node.data_folder), config.server.host
    first = config.cluster.process_http_port
    ports = [first + index if first else 0 for index in range(count)]
    if ports[-1] > PORT_MAX:
        problem = f"{count} processes would need ports up to {ports[-1]}"
        raise BadConfig("cluster.process_http_port", problem)
    for port in filter(None, ports):
        check_free("cluster.process_http_port", host, port)
    gossip = free_ports(LOOPBACK, count, held)
    return [
        Process(
            number,
            data if number == 1 else data / FOLDER / str(number),
            address_of(LOOPBACK, gossip[number - 1]),
            ports[number - 1],
        )
        for number in range(1, count + 1)
    ]


def command(
    process: Process,
    processes: Sequence[Process],
    ports: SharedPorts,
    given: Sequence[str],
    secure: Path | None,
    coordinator_fd: int,
) -> list[str]:
    """Return what starts a process; `given` are options that were typed, for all of them."""
    settings = {
        "node.name": process.name,
        "cluster.preset": "local",
        "cluster.peer_port": "0",  # others learn it from the coordinator
        "cluster.gossip_port": process.gossip.rpartition(":")[2],
        "cluster.bootstrap_nodes": ",".join(each.gossip for each in processes),
        "cluster.expect": str(len(processes)),
        "cluster.process_http_port": str(process.own_http_port),
        "cluster.coordinator_fd": str(coordinator_fd),
        "topics.replication_factor": "1",  # copies on the same disk are of no use
    }
    if secure is not None:
        settings["security.folder"] = str(secure)
    words = [sys.executable, "-m", "waterclock", "up", "--json", *given]
    words += ["--data", str(process.data)]
    words += ["--grpc-port", str(ports.grpc), "--http-port", str(ports.http)]
    return [*words, *(word for pair in settings.items() for word in ("--set", "=".join(pair)))]


# Ports that are shared


@contextmanager
def shared_ports(config: "Config") -> Iterator[SharedPorts]:
    """Hold the ports of all processes while inside, as nobody else may have them; they listen, and
    this does not. Raises BadConfig if one is taken."""
    host, cluster = config.server.host, config.cluster
    with ExitStack() as held:
        yield SharedPorts(
            _hold("cluster.grpc_port", host, cluster.grpc_port, held),
            _hold("cluster.http_port", host, cluster.http_port, held),
        )


def _hold(setting: str, host: str, port: int, held: ExitStack) -> int:
    if port:
        check_free(setting, host, port)
    with bind_errors(setting, host, port):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            holder = held.enter_context(socket.socket(family, kind, protocol))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            holder.bind((address[0], port, *address[2:]))
            port = holder.getsockname()[1]
    return port
