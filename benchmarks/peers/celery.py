"""Celery on Redis: four workers with a pool of two threads each, the fastest of its pools here.

It fetches one message with each BRPOP, keeps it in a hash until it is acknowledged, and does the
job before (`task_acks_late`), as everyone here does.
"""

import sys

from benchmarks import dispatch_fleet
from benchmarks.dispatch_peer import WORKERS, Peer

THREADS = 2
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")


def workers(port: int) -> list[str]:
    """Give the command line of its workers."""
    program = [sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery_job", "worker"]
    pool = ["--pool", "threads", "--concurrency", str(THREADS)]
    names = [["--hostname", f"w{number}@bench"] for number in range(WORKERS)]
    return dispatch_fleet.command(*([*program, *pool, *name, *QUIET] for name in names))


PEER = Peer(
    "celery",
    messages=8_000,
    workers=workers,
    job="celery_job",
    note=f"{WORKERS} workers x {THREADS} threads, acks_late, prefetch 100, no events",
    package=("celery[redis]", "5.7.0"),
)
