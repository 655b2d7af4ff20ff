"""Spark as processes of their own: a standalone master with workers, and a Connect server.

All from the pip package, all on loopback, each told to be up by its own log. They are ended by
their process, and what they said is in their log.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple

import pyspark

from tests.kit.needs import claim
from waterclock.spark.session.jvm_cache import cache_folder, spark_home

LOOPBACK = "127.0.0.1"
INSTALLED = Path(pyspark.__path__[0])
PACKAGE = spark_home(cache_folder(), INSTALLED) or INSTALLED
"""With the workers of Python that start sooner, if they can be had."""
UP_S_MAX = 120.0
END_S_MAX = 60.0
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that is over before well compiled code has paid for itself."""

ENVIRONMENT = {
    "SPARK_HOME": str(PACKAGE),
    "SPARK_LOCAL_IP": LOOPBACK,
    # The port by which anybody could submit a program.
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
    "PYSPARK_PYTHON": sys.executable,
    "GRPC_VERBOSITY": "ERROR",
}


class Daemon:
    """A process of Spark's whose log is followed."""

    def __init__(self, *command: str, folder: Path, memory: str = "256m") -> None:
        claim("spark")
        self._lines: Queue[str] = Queue()
        self._said: list[str] = []
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, "SPARK_DAEMON_MEMORY": memory},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line)
        self._lines.put("")

    def wait_for(self, words: str) -> str:
        """Return the first line of the log that has these words."""
        while True:
            try:
                line = self._lines.get(timeout=UP_S_MAX)
            except Empty:
                line = ""
            assert line, f"it ended, or never said {words!r}:\n{''.join(self._said[-50:])}"
            self._said.append(line)
            if words in line:
                return line

    def end(self) -> None:
        """End it and wait until it has."""
        self._process.terminate()
        self._process.wait(END_S_MAX)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


class Cluster(NamedTuple):
    """A master with two workers."""

    master: str
    """Its URL."""
    folder: Path
    """Where `worker-0` and `worker-1` keep what they run."""


@contextmanager
def standalone(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """Run a master and workers of one core each; lend them."""
    spark_class = str(PACKAGE / "bin" / "spark-class")
    began: list[Daemon] = []
    try:
        master = Daemon(
            spark_class, "org.apache.spark.deploy.master.Master",
            "--host", LOOPBACK, "--port", "0", "--webui-port", "0", folder=folder,
        )  # fmt: skip
        began.append(master)
        url = master.wait_for("Starting Spark master at").split()[-1]
        for number in range(workers):
            worker = Daemon(
                spark_class, "org.apache.spark.deploy.worker.Worker",
                "--host", LOOPBACK, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                "--work-dir", str(folder / f"worker-{number}"), url, folder=folder,
            )  # fmt: skip
            began.append(worker)
        yield Cluster(url, folder)
    finally:
        for daemon in reversed(began):
            daemon.end()


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a Spark Connect server with two cores; lend its URL."""
    server = Daemon(
        str(PACKAGE / "bin" / "spark-submit"), "--master", "local[2,3]",
        "--conf", "spark.connect.grpc.binding.address=" + LOOPBACK,
        "--conf", "spark.connect.grpc.binding.port=0",
        "--conf", "spark.ui.enabled=false",
        "--conf", "spark.driver.host=" + LOOPBACK,
        "--conf", "spark.driver.bindAddress=" + LOOPBACK,
        "--conf", "spark.python.unix.domain.socket.enabled=true",
        "--conf", "spark.sql.shuffle.partitions=2",
        "--conf", "spark.log.level=INFO",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        folder=folder, memory="1g",
    )  # fmt: skip
    try:
        line = server.wait_for("Spark Connect server started at")
        yield "sc://" + line.split()[-1].strip(".")
    finally:
        server.end()
