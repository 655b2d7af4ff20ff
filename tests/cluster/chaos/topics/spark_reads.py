"""Reads by Spark, with its own session for all rounds: whole partitions, as tables."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tests.cluster.chaos.load import Node
from tests.cluster.chaos.topics.grpc_clients import GRPC_PORT
from tests.cluster.history.events import Row

JVM_END_S_MAX = 300.0
"""The first of a machine also writes its cache of classes as it ends."""


class SparkReads:
    """A session that reads topics of some nodes. Its methods block; one at a time."""

    def __init__(self, spark: Any, nodes: Sequence[Node]) -> None:
        self._spark = spark
        self._servers = ",".join(f"{node.host}:{GRPC_PORT}" for node in nodes)
        self._lock = threading.Lock()

    def read(self, topic: str) -> dict[int, list[Row]] | None:
        """Return all rows by partition, in order; None if the job failed."""
        from pyspark.errors import PySparkException

        reader = self._spark.read.format("waterclock").option("servers", self._servers)
        frame = reader.option("topic", topic).option("view", "all")
        with self._lock:
            try:
                found = frame.load().select("partition", "offset", "kind", "message_id").collect()
            except PySparkException:
                return None
        rows: dict[int, list[Row]] = defaultdict(list)
        for partition, offset, kind, message_id in sorted(found):
            rows[partition].append(Row(offset, kind, bytes(message_id).decode()))
        return dict(rows)


@contextlib.contextmanager
def spark_reads(nodes: Sequence[Node]) -> Iterator[SparkReads]:
    """Have a session while inside; it takes ten seconds to start, and a gigabyte."""
    from pyspark.core.context import SparkContext

    from waterclock.spark.session import session

    spark = session(master="local[2]", app="waterclock-chaos", is_short=True)
    try:
        yield SparkReads(spark, nodes)
    finally:
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(JVM_END_S_MAX)
