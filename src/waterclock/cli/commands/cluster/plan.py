"""The nodes of a cluster on this machine: names, folders and ports, and how each is started.

Ports of one kind follow each other, from the one that a single node would have; 0 takes free ones.
Those that must be known before a node has them are held for it until the command ends, also while
it is away. All nodes share one secure folder, that of the data folder, as those of a cluster must.
"""

import errno
import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from waterclock.model.errors import BadConfig
from waterclock.server.addresses import address_of, bind_errors, check_free

if TYPE_CHECKING:
    from waterclock.model.config import Config

PORT_MAX = 65_535
LOOPBACK = "127.0.0.1"
_PORT_MIN = 10_240
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_GIVEN_USUALLY = (32_768, 60_999)
_ENOUGH_PORTS = 1_000
"""To draw from: of fewer, a machine with many nodes may have none left."""
_WILDCARDS = ("0.0.0.0", "::")
_ON_ONE_MACHINE = ("--set", "cluster.preset=local")


class LocalNode(NamedTuple):
    """One node, before it is started. Port 0: it says itself what it got."""

    name: str
    data: Path
    grpc_port: int
    http_port: int
    gossip: str
    """Where it gossips."""


def plan(config: "Config", count: int, held: ExitStack) -> list[LocalNode]:
    """Return so many nodes; raise BadConfig if a port that one would have is taken. Ports that were
    drawn are held until the end of `held`."""
    cluster, host = config.cluster, local_host(config)
    gossip_ports = (
        _consecutive("cluster.gossip_port", host, cluster.gossip_port, count, check=_check_gossip)
        if cluster.gossip_port
        else free_ports(host, count, held)
    )
    grpc_ports = _consecutive("cluster.grpc_port", host, cluster.grpc_port, count)
    http_ports = _consecutive("cluster.http_port", host, cluster.http_port, count)
    _check_apart({"grpc_port": grpc_ports, "http_port": http_ports, "gossip_port": gossip_ports})
    return [
        LocalNode(
            f"{config.node.name or 'node'}-{number}",
            Path(config.node.data_folder) / f"node-{number}",
            grpc_ports[number - 1],
            http_ports[number - 1],
            address_of(host, gossip_ports[number - 1]),
        )
        for number in range(1, count + 1)
    ]


def local_host(config: "Config") -> str:
    """Return where the nodes reach each other."""
    host = config.server.host
    return LOOPBACK if host in _WILDCARDS else host


def command(
    node: LocalNode,
    nodes: Sequence[LocalNode],
    given: Sequence[str],
    secure: Path | None,
    etcd: str = "",
) -> list[str]:
    """Return what starts a node; `given` are options that were typed, for all of them."""
    settings = {
        "node.name": node.name,
        "cluster.peer_port": "0",  # others learn it by gossip
        "cluster.gossip_port": node.gossip.rpartition(":")[2],
        "cluster.bootstrap_nodes": ",".join(each.gossip for each in nodes),
    }
    if secure is not None:
        settings["security.folder"] = str(secure)
    if etcd:
        settings |= {"cluster.etcd": etcd, "cluster.expect": str(len(nodes))}
    words = [sys.executable, "-m", "waterclock", "up", "--json", *_ON_ONE_MACHINE, *given]
    words += ["--data", str(node.data)]
    words += ["--grpc-port", str(node.grpc_port), "--http-port", str(node.http_port)]
    return [*words, *(word for pair in settings.items() for word in ("--set", "=".join(pair)))]


# Ports


def _consecutive(
    setting: str,
    host: str,
    first: int,
    count: int,
    *,
    check: Callable[[str, str, int], None] = check_free,
) -> list[int]:
    if not first:
        return [0] * count
    ports = list(range(first, first + count))
    if ports[-1] > PORT_MAX:
        raise BadConfig(setting, f"{count} nodes would need ports up to {ports[-1]}")
    for port in ports:
        check(setting, host, port)
    return ports


def _check_apart(ports: Mapping[str, Sequence[int]]) -> None:
    """Raise BadConfig if two nodes would have the same port."""
    taken: dict[int, str] = {}
    for name, its in ports.items():
        for port in filter(None, its):
            if port in taken:
                problem = f"would be {port} at one node, as cluster.{taken[port]} at another"
                raise BadConfig(f"cluster.{name}", problem)
            taken[port] = name


def _check_gossip(setting: str, host: str, port: int) -> None:
    check_free(setting, host, port)
    with bind_errors(setting, host, port), _socket(host, socket.SOCK_DGRAM) as packets:
        packets.bind((host, port))


def free_ports(host: str, count: int, held: ExitStack) -> list[int]:
    """Return ports that are free for packets and for streams, as gossip needs them.

    Until the end of `held` nobody else draws them, and the system gives none to a connection: each
    is bound here. It does not listen, so on Linux a process of ours may take it all the same, with
    SO_REUSEADDR, as all servers do; elsewhere it may not, and none is held.
    """
    chance = random.SystemRandom()
    among = _drawn_from()
    ports: list[int] = []
    with ExitStack() as drawn:
        while len(ports) < count:
            port = chance.choice(among)
            streams = drawn.enter_context(_socket(host, socket.SOCK_STREAM))
            try:
                with _socket(host, socket.SOCK_DGRAM) as packets:
                    streams.bind((host, port))
                    packets.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                streams.close()
                continue
            # Only now: bound with it, two commands could draw the same one.
            streams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ports.append(port)
        if sys.platform == "linux":
            held.enter_context(drawn.pop_all())
    return ports


def _drawn_from() -> range:
    """Return ports the system gives to no connection: one could take a port of a node before the
    node does. Where it gives nearly all, all of them: what is bound here it does not give."""
    try:
        first, last = map(int, _GIVEN_PORTS.read_text().split())
    except (OSError, ValueError):  # another system, or a /proc that is hidden
        first, last = _GIVEN_USUALLY
    for ports in (range(_PORT_MIN, first), range(last + 1, PORT_MAX + 1)):
        if len(ports) >= _ENOUGH_PORTS:
            return ports
    return range(_PORT_MIN, PORT_MAX + 1)


def _socket(host: str, kind: socket.SocketKind) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
