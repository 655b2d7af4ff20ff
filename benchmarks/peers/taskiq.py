"""taskiq on a Redis stream: four processes on uvloop, each with many jobs at a time.

It reads many entries with one XREADGROUP; each job and each acknowledgement is a command of its
own, on one of many connections.
"""

import sys

from benchmarks.dispatch_peer import WORKERS, Peer

TASKS = 50
PREFETCH = 500


def workers(port: int) -> list[str]:
    """Give the command line of its workers."""
    options = {"--workers": WORKERS, "--max-async-tasks": TASKS, "--max-prefetch": PREFETCH}
    words = [str(word) for option in options.items() for word in option]
    job = "benchmarks.peers.taskiq_job:broker"
    quiet = ["--no-parse", "--ack-type", "when_executed", "--log-level", "WARNING"]
    return [sys.executable, "-m", "taskiq", "worker", job, *words, *quiet]


PEER = Peer(
    "taskiq",
    messages=20_000,
    workers=workers,
    job="taskiq_job",
    note=f"stream broker, {WORKERS} processes x {TASKS} tasks, uvloop, prefetch {PREFETCH}",
    package=("taskiq-redis", "1.2.4"),
)
