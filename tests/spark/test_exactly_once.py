"""0 lost, 0 duplicated: workers, drivers and nodes killed in the middle of a write, and counted.

What is copied is a topic with two partitions, so that each micro-batch has two tasks.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.examples import IS_FULL
from tests.kit.processes import ROOT
from tests.spark import faults
from tests.spark.spark_node import SparkNode, running
from tests.spark.stored import check_once, rows_stored

ROWS = 600
"""Of each of the two partitions."""
WAIT_S_MAX = 300.0
"""A bound for what hangs; on a busy machine a driver takes a minute to start."""


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """Return a node that knows an id for a second, so that dedup alone is not enough."""
    with running(tmp_path_factory.mktemp("forgetful"), {"dedup": {"window_ms": 1_000}}) as node:
        yield node


@pytest.fixture
def small_batches(spark):
    """Have Spark hand rows over in many small batches, so that there is a middle."""
    faults.register(spark)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "20")
    yield spark
    spark.conf.set(name, before)


def make_topics(node: SparkNode, topic: str) -> tuple[str, str, list[bytes]]:
    """Return a topic full of rows, an empty one, and the values."""
    source, sink = f"{topic}-from", f"{topic}-to"
    node.client.topics.create(source, partitions=2)
    node.client.topics.create(sink, partitions=3)
    values = []
    for partition in (0, 1):
        # The first thirty of each say the same.
        mine = [b"%d/%d" % (partition, max(n, 30)) for n in range(ROWS)]
        node.fill(source, partition, ROWS, value=mine, key=[None] * ROWS)
        values += mine
    return source, sink, values


def copying(spark: Any, node: SparkNode, source: str, sink: str, folder: Path, **options: object):
    """Return a query that copies a topic to the end, begun."""
    reader = spark.readStream.format("waterclock").option("servers", node.servers)
    rows = reader.options(topic=source, maxOffsetsPerTrigger=400, minPartitions=2).load()
    writer = rows.selectExpr("key", "value").writeStream.format("waterclock_faulty")
    return (
        writer.options(servers=node.servers, topic=sink, **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def wait_for_rows(node: SparkNode, topic: str, least: int, is_alive: Callable[[], bool]) -> None:
    """Wait until a topic has so many rows; who writes them must be alive."""
    gives_up_s = time.monotonic() + WAIT_S_MAX
    while rows_stored(node, topic) < least:
        assert is_alive()
        assert time.monotonic() < gives_up_s, f"{rows_stored(node, topic)} rows of {least}"
        time.sleep(0.1)  # asking takes a node and a client some milliseconds of a core


def forget_ids(node: SparkNode) -> None:
    """Wait until the node knows no id any more that it knows now."""
    node.client.publish("probe", b"", message_id=b"probe")
    while not node.client.publish("probe", b"", message_id=b"probe").is_new:
        time.sleep(0.05)


def test_a_killed_worker_in_a_batch_write(small_batches, forgetful, topic, tmp_path):
    _, sink, _ = make_topics(forgetful, topic)
    rows = small_batches.range(0, 1_000, 1, 2).selectExpr("cast(id % 700 as string) as value")
    writer = rows.write.format("waterclock_faulty").mode("append")

    writer.options(
        servers=forgetful.servers, fault="kill-worker", faultFile=tmp_path / "struck"
    ).save(sink)

    assert (tmp_path / "struck").exists()
    check_once(forgetful, sink, [b"%d" % (n % 700) for n in range(1_000)], "worker killed, batch")


def test_a_killed_worker_in_a_micro_batch(small_batches, forgetful, topic, tmp_path):
    source, sink, values = make_topics(forgetful, topic)

    query = copying(
        small_batches, forgetful, source, sink, tmp_path,
        fault="kill-worker", faultFile=tmp_path / "struck",
    )  # fmt: skip
    query.awaitTermination()

    assert (tmp_path / "struck").exists()
    check_once(forgetful, sink, values, "worker killed, stream")


def test_a_batch_repeated_after_the_node_has_forgotten_its_ids(
    small_batches, forgetful, topic, tmp_path
):
    source, sink, values = make_topics(forgetful, topic)
    fault = {"fault": "fail-task", "faultFile": tmp_path / "over"}
    with pytest.raises(Exception, match="planted: the task fails"):
        copying(small_batches, forgetful, source, sink, tmp_path, **fault).awaitTermination()
    assert 0 < rows_stored(forgetful, sink) < len(values)
    forget_ids(forgetful)
    (tmp_path / "over").touch()

    copying(small_batches, forgetful, source, sink, tmp_path, **fault).awaitTermination()

    check_once(forgetful, sink, values, "repeated after the dedup window, rows in another order")


def test_a_committed_batch_that_spark_forgot_of(small_batches, forgetful, topic, tmp_path):
    """Its checkpoint is not fsynced: after a power cut the note of the last commit may be gone."""
    source, sink, values = make_topics(forgetful, topic)
    copying(small_batches, forgetful, source, sink, tmp_path).awaitTermination()
    notes = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in notes.iterdir() if file.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (notes / name).unlink(missing_ok=True)
    forget_ids(forgetful)

    copying(small_batches, forgetful, source, sink, tmp_path).awaitTermination()

    assert (notes / f"{last}").exists()
    check_once(forgetful, sink, values, "Spark's note of the commit lost")


def test_a_node_killed_and_started_again_in_mid_batch(small_batches, own_node, topic, tmp_path):
    """It is read from and written to: both go on where they were."""
    source, sink, values = make_topics(own_node, topic)
    query = copying(small_batches, own_node, source, sink, tmp_path, rateLimit=200)
    for least in (100, 500, 900):
        wait_for_rows(own_node, sink, least, lambda: query.isActive)
        own_node.kill()
        own_node.start()

    query.awaitTermination()

    check_once(own_node, sink, values, "node killed three times")


def test_a_driver_killed_in_mid_batch_and_after_its_commit(small_batches, node, topic, tmp_path):
    """The second kill is left to `make sim`: what such a driver leaves, a commit of ours that Spark
    has no note of, is had without one in `test_a_committed_batch_that_spark_forgot_of`."""
    source, sink, values = make_topics(node, topic)
    said = {
        "servers": node.servers,
        "source": source,
        "sink": sink,
        "checkpoint": str(tmp_path / "checkpoint"),
        "batch_rows": 400,
    }

    def killed_in_mid_batch(process: subprocess.Popen[bytes]) -> None:
        wait_for_rows(node, sink, 500, lambda: process.poll() is None)
        os.killpg(process.pid, signal.SIGKILL)

    first = run_driver({**said, "options": {"rateLimit": 200}}, killed_in_mid_batch)
    stored = rows_stored(node, sink)
    if IS_FULL:
        fault = {"fault": "kill-driver", "faultFile": str(tmp_path / "struck")}
        assert run_driver({**said, "options": fault}) == -signal.SIGKILL
        (writer,) = node.client.write_registry.list(sink)
        noted = {file.name for file in (tmp_path / "checkpoint" / "commits").iterdir()}
        # It died in between: our commit was made, Spark's was not.
        assert (tmp_path / "struck").exists()
        assert f"{writer.committed}" not in noted
    copying(small_batches, node, source, sink, tmp_path).awaitTermination()

    assert first == -signal.SIGKILL
    assert 500 <= stored < len(values)
    check_once(node, sink, values, "driver killed in mid-batch, then right after the sink's commit")


def run_driver(said: dict[str, Any], meanwhile: Any = None) -> int:
    """Run a driver in a process group of its own; return its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver_main", json.dumps(said)],
        cwd=ROOT,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        if meanwhile is not None:
            meanwhile(process)
        return process.wait(WAIT_S_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
