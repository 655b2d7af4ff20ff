"""pyrallel-consumer: the one library for Python that does what `waterclock.burrow` does.

It wants a later Python than ours, so its client is a process of that one, which the process of the
case starts. It runs on asyncio with as many messages in flight as we have workers; the rest is as
it comes: it sets up its Kafka client itself.
"""

import asyncio
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from types import ModuleType

from benchmarks.burrow_work import ExactWait
from benchmarks.client import CLIENT_S_MAX, Stopwatch
from benchmarks.machine import ROOT
from benchmarks.peers.cache import FETCH_S_MAX, Absent, cached
from benchmarks.peers.server import Server

NAME = "pyrallel"
PACKAGE, VERSION = "pyrallel-consumer", "1.0.0"
PYTHON = "3.12"
INTERPRETER, LIBRARY = "BENCH_PYRALLEL_PYTHON", "BENCH_PYRALLEL_PATH"
"""What a client needs in its environment."""
WARM_UP = 2


def interpreter() -> str:
    """Find the Python it needs."""
    found = [shutil.which(f"python{PYTHON}")]
    versions = Path.home() / ".pyenv" / "versions"
    found += map(str, sorted(versions.glob(f"{PYTHON}.*/bin/python")))
    for program in found:
        if program is not None and _answers(program):
            return program
    raise Absent(f"there is no Python {PYTHON}")


def _answers(program: str) -> bool:
    # A shim of pyenv is there also for versions that are not chosen.
    return subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0


def library(python: str) -> Path:
    """Put the package into a folder of its own; give it."""
    uv = Path(sys.executable).with_name("uv")

    def fill(folder: Path) -> None:
        name = f"{PACKAGE}=={VERSION}"
        command = [str(uv), "pip", "install", "--quiet", "--python", python]
        command += ["--target", str(folder), name]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=FETCH_S_MAX)
        except (OSError, subprocess.SubprocessError) as error:
            raise Absent(f"{name} cannot be fetched: {error}") from error

    return cached(f"python-{PACKAGE}-{VERSION}-cp{PYTHON.replace('.', '')}", fill)


@contextmanager
def beside(broker: Server) -> Iterator[Server]:
    """Give the broker as this library's clients see it."""
    python = interpreter()
    seen = copy(broker)
    seen.client_environ = {
        **broker.client_environ, INTERPRETER: python, LIBRARY: str(library(python)),
    }  # fmt: skip
    seen.version = f"{VERSION} (Python {PYTHON})"
    yield seen


# Clients


def consume(watch: Stopwatch, port: int, **work: object) -> None:
    """Have a process of the other Python do it."""
    environ = {**os.environ, "PYTHONPATH": os.environ[LIBRARY]}
    task = json.dumps({"group": watch.group, "port": port, **work})
    function = "benchmarks.peers.pyrallel:consume_here"
    command = [os.environ[INTERPRETER], "-m", "benchmarks.client", function, task]
    run = subprocess.run(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True,
        timeout=CLIENT_S_MAX,
    )  # fmt: skip
    for name, value in json.loads(run.stdout.splitlines()[-1]).items():
        setattr(watch, name, value)


def consume_here(
    watch: Stopwatch,
    port: int,
    *,
    topic: str,
    messages: int,
    order: str,
    workers: int,
    seconds: float = 0.0,
) -> None:
    """Work on so many messages, each for so long."""
    logging.disable(logging.CRITICAL)
    pyrallel = importlib.import_module("pyrallel_consumer")
    asyncio.run(_consume(pyrallel, watch, port, topic, messages, order, workers, seconds))


async def _consume(
    pyrallel: ModuleType,
    watch: Stopwatch,
    port: int,
    topic: str,
    messages: int,
    order: str,
    workers: int,
    seconds: float,
) -> None:
    config = pyrallel.KafkaConfig(
        BOOTSTRAP_SERVERS=[f"127.0.0.1:{port}"],
        CONSUMER_GROUP=f"group-{time.monotonic_ns()}",
        dlq_enabled=False,
    )
    config.parallel_consumer.ordering_mode = pyrallel.OrderingMode(order)
    config.parallel_consumer.execution.max_in_flight = workers
    exact = ExactWait(seconds) if seconds else None
    if exact is not None:
        await exact.settle()
    done = asyncio.Event()
    clock = watch.running(messages)
    left = messages + WARM_UP * workers

    async def process(item: object) -> None:
        nonlocal left
        if exact is not None:
            await exact.wait()
        left -= 1
        if left == messages:
            clock.__enter__()
        elif left == 0:
            clock.__exit__(None, None, None)
            done.set()

    consumer = pyrallel.PyrallelConsumer(config=config, worker=process, topic=topic)
    await consumer.start()
    await done.wait()
    await consumer.stop()
    if exact is not None:
        watch.more["work_s"] = exact.mean_s
        exact.close()
