"""XREADGROUP and XAUTOCLAIM in a loop: what a consumer group of Redis gives without a dispatcher.

The client is redis-py with hiredis; see `redis_group_job` for the loop.
"""

import sys

from benchmarks import dispatch_fleet
from benchmarks.dispatch_peer import WORKERS, Peer
from benchmarks.peers.redis_group_job import BATCH


def workers(port: int) -> list[str]:
    """Give the command line of its workers."""
    program = [sys.executable, "-m", "benchmarks.peers.redis_group_job"]
    return dispatch_fleet.command(*[program] * WORKERS)


PEER = Peer(
    "xreadgroup",
    messages=200_000,
    workers=workers,
    job="redis_group_job",
    note=f"{WORKERS} processes, redis-py + hiredis, batches of {BATCH} in one pipeline",
)
