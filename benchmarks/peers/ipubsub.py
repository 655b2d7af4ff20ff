"""iPubSub: in-memory streams by HTTP, in Go, with the API that a node of ours has as well.

Its server is built from a commit of its repository; `$BENCH_IPUBSUB` names a clone of that, where
the network has none. One node, which may use all cores: so it is compared by the processor time of
an operation, not by operations a second alone. It writes a line for each request, which no setting
prevents, so they go nowhere; `GIN_MODE=release` is what its framework asks for in production.

Both servers are sent the same requests here: those of the API as published, below /api/v1. A ring
keeps 100 messages, by default of both.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.load import BODY, get, names, play, post, send_all
from benchmarks.peers.cache import Programs, go_commit
from benchmarks.peers.server import Server, free_port, started

NAME = "ipubsub"
REPOSITORY = "https://github.com/iworkflowio/ipubsub"
COMMIT = "5d5c1fe24eda8f142bc7ffd0bc1fbf1b4f664011"
RECEIVE_S = 30
"""How long to wait for a message, which it wants to be told."""
SETTINGS = """
log: {{stdout: true, level: warn}}
node:
  node_name: bench
  gossip_bind_addr_port: "127.0.0.1:{gossip}"
  gossip_advertise_addr_port: "127.0.0.1:{gossip}"
  http_bind_addr_port: "127.0.0.1:{port}"
  http_advertise_addr_port: "127.0.0.1:{port}"
cluster:
  cluster_name: bench
  bootstrap_type: static
  static_bootstrap_node_addr_ports: ["127.0.0.1:{gossip}"]
match: {{receive_default_timeout: 30s, send_default_timeout: 30s}}
"""


def programs() -> Programs:
    """Build the server."""
    repository = os.environ.get("BENCH_IPUBSUB") or REPOSITORY
    return Programs(go_commit(NAME, repository, COMMIT, tree="server", package="./cmd"))


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a node."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    config = folder / "node.yaml"
    config.write_text(SETTINGS.format(port=port, gossip=free_port()))
    shell = 'exec "$0" -config "$1" >/dev/null'
    command: list[str | Path] = ["sh", "-c", shell, its.find(NAME), config]
    environ = {**its.environ(), "GIN_MODE": "release"}
    with started(command, folder=folder, port=port, environ=environ) as server:
        server.version = COMMIT[:8]
        yield server


def send_to(name: str) -> bytes:
    """Encode a send; all messages of a stream have one id, which neither server minds."""
    message = uuid.uuid5(uuid.NAMESPACE_OID, name)
    body = b'{"messageUuid":"%b","streamId":"%b","message":%b}'
    return post("/api/v1/streams/send", body % (str(message).encode(), name.encode(), BODY))


def receive_from(name: str) -> bytes:
    """Encode a receive."""
    return get(f"/api/v1/streams/receive?streamId={name}&timeoutSeconds={RECEIVE_S}")


# Clients, of both servers


def send(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Send; once a ring is full, each message takes the place of the oldest."""
    play(watch, port, [send_to(name) for name in names("v1-send", streams)], seconds=seconds)


def send_receive(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Send to each stream in turn and receive from it."""
    found = names("v1-both", streams)
    # Else a receive that comes first waits for the stream, and then for whole seconds.
    send_all(port, [send_to(name) for name in found])
    both = [request for name in found for request in (send_to(name), receive_from(name))]
    play(watch, port, both, seconds=seconds)
