"""One Spark session in a process of its own, which does what it is asked over a socket.

    python -m benchmarks.spark_driver PORT SETTINGS

All reads and writes of the benchmark, ours and the peers', are made by this one session, with the
settings of `waterclock pipeline`; so all of them find the same warm JVM. A request is a line of
JSON that names a function below; the answer is a line with its stopwatch, or with what went wrong.
"""

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from pyspark.sql import DataFrame, SparkSession
from pyspark.version import __version__

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Absent
from benchmarks.peers.server import CLOCK_TICKS, Server, cpu_seconds, free_port, started
from waterclock.spark.session import session

MODULE = "benchmarks.spark_driver"
ANSWER_S_MAX = 900
NOBODY = -1
"""The process group of no server: files are read by Spark itself."""


class Source(TypedDict, total=False):
    """Where rows come from, or go: the options of Spark's readers and writers."""

    format: str
    options: dict[str, str]
    path: str
    columns: list[str]
    """SQL expressions; all columns as they are if there are none."""


# The side of the benchmark


@contextmanager
def running(folder: Path, *, archives: Sequence[str] = ()) -> Iterator[Server]:
    """Run a session with these Java archives besides, until the end of the block."""
    port = free_port()
    settings = {"spark.local.dir": str(folder / "local"), "spark.jars": ",".join(archives)}
    command = [sys.executable, "-m", MODULE, str(port), json.dumps(settings)]
    # It works in a folder of its own, and must find this package from there.
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with started(command, folder=folder, port=port, environ=environ) as server:
        server.version = __version__
        yield server


def ask(driver: Server, function: str, server: Server | None, **arguments: object) -> Stopwatch:
    """Have the session do something with the rows of a server, or of files."""
    group = NOBODY if server is None else server.group
    request = {"do": function, "group": group, **arguments}
    address = ("127.0.0.1", driver.port)
    with socket.create_connection(address, ANSWER_S_MAX) as wire, wire.makefile("rwb") as talk:
        talk.write(json.dumps(request).encode() + b"\n")
        talk.flush()
        line = talk.readline()
    if not line:
        raise Absent("the Spark session has ended")
    answer = json.loads(line)
    if "failed" in answer:
        raise RuntimeError(f"Spark could not {function} {arguments}:\n{answer['failed']}")
    return Stopwatch(**answer)


# The side of Spark


class Watch(Stopwatch):
    """A stopwatch that counts the JVM and Python's workers as the client."""

    @contextmanager
    def running(self, messages: int) -> Iterator[None]:
        """Measure what is done in the block, to so many rows."""
        own, server, wall = family_cpu_s(), cpu_seconds(self.group), time.perf_counter()
        yield
        self.wall_s += time.perf_counter() - wall
        self.client_cpu_s += family_cpu_s() - own
        self.server_cpu_s += cpu_seconds(self.group) - server
        self.messages += messages


def family_cpu_s() -> float:
    """Give the processor time of this process and of all that descend from it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    own, total = os.getpid(), 0
    for pid, used in ticks.items():
        at: int | None = pid
        while at and at != own:
            at = parents.get(at)
        total += used if at == own else 0
    return total / CLOCK_TICKS


def read(spark: SparkSession, watch: Watch, *, rows: int, source: Source) -> None:
    """Read rows, all columns of them, into Spark's sink for nothing."""
    with watch.running(rows):
        _frame(spark, source).write.format("noop").mode("overwrite").save()


def count(spark: SparkSession, watch: Watch, *, source: Source) -> None:
    """Count rows, and tell when the first and the last of them were appended."""
    with watch.running(0):
        watch.messages = _frame(spark, source).count()


def times(spark: SparkSession, watch: Watch, *, source: Source) -> None:
    """Tell when the first and the last of some rows were appended, in milliseconds."""
    found = _frame(spark, source).selectExpr(
        "unix_millis(min(append_time)) first", "unix_millis(max(append_time)) last"
    )
    watch.more |= found.collect()[0].asDict()


def stream(
    spark: SparkSession, watch: Watch, *, rows: int, source: Source, checkpoint: str
) -> None:
    """Read rows with a streaming query that takes all there is now, batch by batch."""
    with watch.running(rows):
        reader = spark.readStream.format(source["format"]).options(**source.get("options", {}))
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    found = [progress.numInputRows for progress in query.recentProgress]
    assert sum(found) == rows, f"the query read {sum(found)} rows, not {rows}"
    watch.more["batches"] = sum(1 for each in found if each)


def write(spark: SparkSession, watch: Watch, *, rows: int, source: Source, target: Source) -> None:
    """Write rows somewhere else."""
    frame = _frame(spark, source)
    with watch.running(rows):
        writer = frame.write.format(target["format"]).options(**target.get("options", {}))
        writer.mode("append").save(target.get("path"))


def _frame(spark: SparkSession, source: Source) -> DataFrame:
    reader = spark.read.format(source["format"]).options(**source.get("options", {}))
    frame = reader.load(source.get("path"))
    return frame.selectExpr(*source["columns"]) if source.get("columns") else frame


FUNCTIONS: dict[str, Callable[..., None]] = {
    "read": read,
    "count": count,
    "times": times,
    "stream": stream,
    "write": write,
}


def answer(spark: SparkSession, request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked."""
    arguments = dict(request)
    watch, function = Watch(arguments.pop("group")), FUNCTIONS[arguments.pop("do")]
    try:
        function(spark, watch, **arguments)
    except Exception:
        # Whatever it is, the caller gets it as the reply; the session goes on.
        return {"failed": traceback.format_exc()}
    return asdict(watch)


def main() -> None:
    """Be that process."""
    settings = {name: value for name, value in json.loads(sys.argv[2]).items() if value}
    settings["spark.ui.showConsoleProgress"] = "false"
    # A client that connects waits until the session has started.
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        spark = session(app="benchmark", settings=settings)
        while True:
            wire, _ = listener.accept()
            with wire, wire.makefile("rwb") as talk:
                for line in talk:
                    reply = answer(spark, json.loads(line))
                    talk.write(json.dumps(reply).encode() + b"\n")
                    talk.flush()


if __name__ == "__main__":
    main()
