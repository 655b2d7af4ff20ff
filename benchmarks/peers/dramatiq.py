"""Dramatiq on Redis: four processes, with as many threads and as large a prefetch as serve it best.

Its worker fetches up to `dramatiq_queue_prefetch` messages with one script and acknowledges each
with a script of its own; it cannot send several acknowledgements together.
"""

import sys

from benchmarks.dispatch_peer import WORKERS, Peer

THREADS = 8
PREFETCH = 1_000


def workers(port: int) -> list[str]:
    """Give the command line of its workers."""
    counts = ["--processes", str(WORKERS), "--threads", str(THREADS)]
    return [sys.executable, "-m", "dramatiq", "benchmarks.peers.dramatiq_job", *counts]


PEER = Peer(
    "dramatiq",
    messages=20_000,
    workers=workers,
    job="dramatiq_job",
    note=f"{WORKERS} processes x {THREADS} threads, prefetch {PREFETCH}, no middleware",
    package=("dramatiq", "2.2.1"),
    environ={"dramatiq_queue_prefetch": str(PREFETCH)},
)
