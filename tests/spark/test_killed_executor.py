"""0 lost, 0 duplicated: executors of a real cluster killed in the middle of a write, and counted.

A master, two workers with an executor each, and one driver, which is this file as a program: it
takes a job a line. Both tasks of a write are held at their middle until a file appears, so an
executor is killed while it writes for certain. The node forgets ids before anybody goes on: what
the killed task had stored must be known by the write registry and by reading back, not by dedup.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import StructType

from tests.kit.examples import IS_FULL
from tests.kit.processes import ROOT
from tests.spark import faults
from tests.spark.clusters import ENVIRONMENT, LOOPBACK, SHORT_LIVED
from tests.spark.spark_node import SparkNode, running
from tests.spark.stored import check_once, rows_stored
from waterclock.spark.session import session
from waterclock.spark.source import WaterclockSource
from waterclock.spark.write.batch import BatchWriter
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.stream import StreamWriter

WAIT_S_MAX = 600.0
"""A bound for what hangs."""
END_S_MAX = 60.0
ROWS = 600
"""Of each of the two partitions of the topic that is copied."""
BATCH_ROWS = 400
"""Of a micro-batch: there are three, and the second is held."""
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


# In the driver, and in the tasks


class Hold(faults.Fault):
    """Tasks stop at their middle, say so in a file, and go on when there is a file `go`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.folder = Path(options.pop("holdFolder"))

    def troubled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, and wait after some; an attempt after the first waits before all."""
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("streaming.sql.batchId") not in (None, "1"):
            yield from batches
        elif context.attemptNumber():
            self._wait()
            yield from faults.shuffled(batches)
        else:
            rows = 0
            for number, batch in enumerate(batches):
                if number == faults.BATCHES_BEFORE:
                    self._note({"pid": os.getpid(), "rows": rows}, context.partitionId())
                    self._wait()
                yield batch
                rows += batch.num_rows

    def _note(self, what: dict[str, int], task: int) -> None:
        unfinished = self.folder / f"unfinished-{task}"
        unfinished.write_text(json.dumps(what))
        unfinished.rename(self.folder / f"held-{task}")

    def _wait(self) -> None:
        gives_up_s = time.monotonic() + WAIT_S_MAX
        while not (self.folder / "go").exists():
            if time.monotonic() > gives_up_s:
                raise RuntimeError("held for too long")
            time.sleep(0.02)


class HeldSource(WaterclockSource):
    """The source whose writers hold."""

    @classmethod
    def name(cls) -> str:
        return "waterclock_held"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        hold = Hold(self.options)
        options = WriteOptions.parse(self.options)
        return faults.FaultyBatchWriter(hold, options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        hold = Hold(self.options)
        options = WriteOptions.parse(self.options)
        return faults.FaultyStreamWriter(hold, options, schema)


def write_batch(spark: Any, options: dict[str, str], shown: dict[str, str]) -> None:
    """Write a thousand rows from two tasks; some of them say the same."""
    rows = spark.range(0, 1_000, 1, 2).selectExpr("cast(id % 700 as string) as value")
    rows.write.format("waterclock_held").mode("append").options(**options).save(shown["sink"])


def copy_stream(spark: Any, options: dict[str, str], shown: dict[str, str]) -> None:
    """Copy a topic to its end, in micro-batches of two tasks."""
    reader = spark.readStream.format("waterclock").option("servers", options["servers"])
    # So few rows would else be one task.
    reader = reader.options(maxOffsetsPerTrigger=BATCH_ROWS, minPartitions=2)
    rows = reader.options(topic=shown["source"]).load()
    query = (
        rows.selectExpr("key", "value")
        .writeStream.format("waterclock_held")
        .options(topic=shown["sink"], checkpointLocation=shown["checkpoint"], **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def drive(master: str, log_file: str) -> None:
    """Do the jobs that come in by stdin, each with a file to say that it is done."""
    settings = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        # Both executors are there before a job begins: each has one of its two tasks.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        "spark.cores.max": "2",
        # Many small batches, so that there is a middle.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    jobs = {"batch": write_batch, "stream": copy_stream}
    # What is defined in a program is sent along by itself; what it imports from tests is not.
    cloudpickle.register_pickle_by_value(faults)
    with open(log_file, "ab") as log:
        spark = session(
            master=master, app="killed-executor", settings=settings, log=log, is_short=True
        )
        spark.dataSource.register(HeldSource)
        for line in sys.stdin:
            shown = json.loads(line)
            jobs[shown["job"]](spark, shown["options"], shown)
            Path(shown["done"]).touch()
        spark.stop()


# In the tests


class Driver:
    """The driver's process."""

    def __init__(self, master: str, folder: Path) -> None:
        self._log_file = folder / "driver.log"
        with open(self._log_file, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, master, str(self._log_file)],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )

    def tell(self, shown: dict[str, Any]) -> None:
        """Give it a job."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(shown) + "\n")
        self.process.stdin.flush()

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for something that comes while it lives."""
        gives_up_s = time.monotonic() + WAIT_S_MAX
        while not is_so():
            assert self.process.poll() is None, self._said()
            assert time.monotonic() < gives_up_s, f"never: {what}\n{self._said()}"
            time.sleep(0.1)  # the claim may ask a node, which takes milliseconds of a core

    def end(self) -> None:
        """End it: there are no more jobs."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            assert self.process.wait(END_S_MAX) == 0, self._said()
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def _said(self) -> str:
        return self._log_file.read_text(errors="replace")[-6_000:]


@pytest.fixture(scope="module")
def folder(cluster):
    return cluster.folder


@pytest.fixture(scope="module")
def driver(cluster):
    driver = Driver(cluster.master, cluster.folder)
    try:
        yield driver
    finally:
        driver.end()


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """Return a node that knows an id for a second, so that dedup alone is not enough."""
    with running(tmp_path_factory.mktemp("forgetful"), {"dedup": {"window_ms": 1_000}}) as node:
        yield node


Job = tuple[dict[str, Any], list[bytes], int]
"""What the driver is told, what is to be there in the end, and what is stored before the hold."""


def batch_write(node: SparkNode, topic: str, folder: Path) -> Job:
    return {"job": "batch", "sink": topic}, [b"%d" % (n % 700) for n in range(1_000)], 0


def stream(node: SparkNode, topic: str, folder: Path) -> Job:
    """It reads there as well: the second micro-batch of three, the first is committed."""
    source = f"{topic}-from"
    node.client.topics.create(source, partitions=2)
    values = []
    for partition in (0, 1):
        # Some of each say the same.
        mine = [b"%d/%d" % (partition, n % 450) for n in range(ROWS)]
        node.fill(source, partition, ROWS, value=mine, key=[None] * ROWS)
        values += mine
    checkpoint = str(folder / "checkpoint")
    shown = {"job": "stream", "source": source, "sink": topic, "checkpoint": checkpoint}
    return shown, values, BATCH_ROWS


# In a batch write every day a worker is killed (test_exactly_once), and an executor in `make sim`.
@pytest.mark.parametrize("job", [stream, batch_write] if IS_FULL else [stream])
def test_an_executor_killed_in(job, driver, forgetful, folder, topic, tmp_path):
    forgetful.client.topics.create(topic, partitions=3)
    shown, values, before = job(forgetful, topic, tmp_path)

    check_killed(driver, forgetful, folder, tmp_path, shown, values, before=before)


def check_killed(
    driver: Driver,
    node: SparkNode,
    folder: Path,
    tmp_path: Path,
    shown: dict[str, Any],
    values: list[bytes],
    *,
    before: int,
) -> None:
    """Have a job done whose first task loses its executor in the middle; count what is stored.

    `before` is how many rows are stored before the tasks that are held begin.
    """
    done, summary_file, sink = tmp_path / "done", tmp_path / "summary", shown["sink"]
    options = {
        "servers": node.servers,
        "holdFolder": str(tmp_path),
        "summaryFile": str(summary_file),
    }
    driver.tell({**shown, "done": str(done), "options": options})

    notes = [tmp_path / "held-0", tmp_path / "held-1"]
    driver.wait_until(lambda: all(note.exists() for note in notes), "both tasks in their middle")
    held = [json.loads(note.read_text()) for note in notes]
    handed = before + sum(each["rows"] for each in held)
    driver.wait_until(lambda: rows_stored(node, sink) >= handed, f"{handed} rows stored")
    executors = executors_of(folder)
    mine, other = (executor_of(each["pid"], executors) for each in held)
    assert mine != other
    assert len(executors) == 2

    os.kill(mine, signal.SIGKILL)
    # The task's Python goes with its executor: no half of it writes on.
    driver.wait_until(lambda: not is_alive(held[0]["pid"]), "the task is dead")
    assert rows_stored(node, sink) == handed
    forget_ids(node)
    (tmp_path / "go").touch()
    driver.wait_until(done.exists, "the job is done")

    print(
        f"\nexecutor {mine} of {executors} killed with {handed} of {len(values)} rows stored, "
        f"{held[0]['rows']} of them by the task it ran"
    )
    assert 0 < held[0]["rows"] < handed < len(values)
    check_once(node, sink, values, f"executor killed, {shown['job']}")
    # What the killed attempt had stored, and nothing else, was found by the next.
    lines = [json.loads(line) for line in summary_file.read_text().splitlines()]
    assert sum(line["found"] for line in lines) == held[0]["rows"]
    assert not is_alive(mine)


def forget_ids(node: SparkNode) -> None:
    """Wait until the node knows no id any more that it knows now."""
    node.client.publish("probe", b"", message_id=b"probe")
    while not node.client.publish("probe", b"", message_id=b"probe").is_new:
        time.sleep(0.05)


def executors_of(folder: Path) -> list[int]:
    """Return the executors that run under the workers this process has started in a folder."""
    parents = parents_now()
    workers = {
        pid
        for pid, parent in parents.items()
        if parent == os.getpid() and WORKER in (said := command(pid)) and str(folder) in said
    }
    assert len(workers) == 2
    return [
        pid for pid, parent in parents.items() if parent in workers and EXECUTOR in command(pid)
    ]


def executor_of(pid: int, executors: list[int]) -> int:
    """Return the executor that a task's Python process was started by."""
    parents = parents_now()
    while pid not in executors:
        pid = parents[pid]
    return pid


def parents_now() -> dict[int, int]:
    """Return the parent of each process that lives."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (fields := stat_of(int(folder.name))) and fields[0] != "Z":
            found[int(folder.name)] = int(fields[1])
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has asked for its end does not."""
    fields = stat_of(pid)
    return bool(fields) and fields[0] != "Z"


def stat_of(pid: int) -> list[str]:
    """Return state, parent and more of a process; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def command(pid: int) -> str:
    """Return how a process was started."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


if __name__ == "__main__":
    drive(*sys.argv[1:])
