"""Which peers take part: all of them, or those that `BENCH_PEERS` names, if they can be had."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import Report, Tick
from benchmarks.peers.cache import Absent
from benchmarks.peers.server import Server

Opener = Callable[[Path], AbstractContextManager[Server]]
"""Starts a server in a folder."""
Servers = dict[str, Server]
NODE, NODES = "node", "waterclock"
"""Our own: one node, as `node_tls` is too; and several, whose version is that of their etcd."""


def is_wanted(peer: str) -> bool:
    """Tell whether a peer is to take part. `jetstream_nosync` is one of `jetstream`."""
    names = os.environ.get("BENCH_PEERS")
    if _is_ours(peer) or names is None or names == "all":
        return True
    return peer.partition("_")[0] in names.split(",")


def _is_ours(peer: str) -> bool:
    return peer.partition("_")[0] in (NODE, NODES)


def _name_version(report: Report, peer: str, server: Server) -> None:
    if peer != NODE and "_" not in peer:
        report.machine[peer] = server.version


@contextmanager
def lineup(
    report: Report, scratch: Path, openers: Mapping[str, Opener], tick: Tick
) -> Iterator[Servers]:
    """Start the peers; one that is absent is noted, with the reason."""
    servers: Servers = {}
    left_out = [peer for peer in openers if not is_wanted(peer)]
    if left_out:
        report.notes.append(f"Left out by BENCH_PEERS: {', '.join(left_out)}.")
    with ExitStack() as stack:
        for peer, opener in openers.items():
            tick(f"start {peer}")
            if peer in left_out:
                continue
            try:
                servers[peer] = stack.enter_context(opener(scratch / peer))
            except Absent as reason:
                if _is_ours(peer):
                    raise
                report.notes.append(f"Absent: {peer}, because {reason}.")
            else:
                _name_version(report, peer, servers[peer])
        yield servers
