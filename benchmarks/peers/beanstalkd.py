"""beanstalkd: jobs put with a delay, from one connection that pipelines.

`-f 0` writes every job through to the disk before it answers, as we do; by default it does so
every 50 ms, which is measured too and named for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Programs, debian, program_version
from benchmarks.peers.server import Server, free_port, started
from benchmarks.peers.wire import VALUE, Marks, connect, pump

NAME = "beanstalkd"
BATCH = 1_000
PRIORITY, DELAY_S, TO_RUN_S = 1, 86_400, 60


def programs() -> Programs:
    """Find it or fetch it."""
    return debian("beanstalkd", ["beanstalkd"])


@contextmanager
def running(folder: Path, *, is_durable: bool = True) -> Iterator[Server]:
    """Run a server."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    sync = ["-f", "0"] if is_durable else []
    command: list[str | Path] = [
        its.find("beanstalkd"),
        "-l",
        "127.0.0.1",
        "-p",
        str(port),
        "-b",
        folder,
        *sync,
    ]
    with started(command, folder=folder, port=port, environ=its.environ()) as server:
        server.version = program_version(its, "beanstalkd", "-v")
        yield server


def schedule(watch: Stopwatch, port: int, *, messages: int, window: int) -> None:
    """Put jobs for tomorrow, at most a window of batches unanswered."""
    job = b"put %d %d %d %d\r\n%s\r\n" % (PRIORITY, DELAY_S, TO_RUN_S, len(VALUE), VALUE)
    batches = repeat(job * BATCH, messages // BATCH)
    answers = Marks(b"INSERTED", bad=b"OUT_OF_MEMORY")
    with connect(port) as wire, watch.running(messages):
        pump(wire, batches, answers=BATCH, window=window, feed=answers.feed)
