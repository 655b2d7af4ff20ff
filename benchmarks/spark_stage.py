"""What the rounds of Spark's benchmark are played on: one session, and the rows, three times.

The session starts with our node, since it needs both; Parquet is written from our topic, with the
columns that has. Rows are read by each before the clock runs, so that all are compiled and in the
page cache.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.client import Stopwatch, run_client
from benchmarks.contest import Case
from benchmarks.harness import whole_batches
from benchmarks.node.running import running
from benchmarks.peers import kafka_spark
from benchmarks.peers.server import Server
from benchmarks.rows import BATCH
from benchmarks.spark_driver import Source, ask
from benchmarks.spark_driver import running as running_driver

PARTITIONS = 4
ROWS = 20_000_000
KEYS = 1_000_000
STREAMED = 5_000_000
TRIGGER_ROWS = 1_000_000
WRITTEN = 4_000_000
FILTER = 1_000
"""One row of so many is read where only some are."""
FILTERED = ("read_offsets", "read_times")
TOPIC, TARGET = "rows", "written"
COLUMNS = ["key", "value"]
"""What is written."""


def amount(rows: int) -> int:
    """Shrink a number of rows to the scale of this run: the same whole batches everywhere."""
    return whole_batches(rows, batch=PARTITIONS * BATCH)


class Stage:
    """Servers, session, rows and cases."""

    def __init__(self) -> None:
        self._rows = amount(ROWS)
        self._streamed = min(amount(STREAMED), self._rows)
        self._written = min(amount(WRITTEN), self._rows)
        self._numbers = count()
        self._folder = Path()
        self._driver: Server | None = None
        self._node: Server | None = None
        self._times: dict[str, str] = {}
        self._time_rows = 0
        self.version = ""

    # Openers

    @contextmanager
    def node(self, folder: Path) -> Iterator[Server]:
        """Run a node that has the rows, and the session."""
        archives = kafka_spark.connector_or_none()
        with (
            running(folder) as node,
            running_driver(folder / "spark", archives=archives) as driver,
        ):
            self._folder, self._driver, self._node = folder, driver, node
            self.version = driver.version
            place = {"topic": TOPIC, "partitions": PARTITIONS}
            run_client("benchmarks.node.loading:create", node, **place)
            work = {"messages": self._rows, "keys": KEYS}
            run_client("benchmarks.node.loading:load", node, **place, **work)
            self._find_times()
            self._warm_up(self._ours(), self._rows)
            self._copy(self._ours(ending=self._places(0, self._written)), "some", COLUMNS)
            yield node

    @contextmanager
    def parquet(self, folder: Path) -> Iterator[Server]:
        """Write the rows as Parquet; who reads them is Spark itself."""
        driver = self._session()
        self._copy(self._ours(), "all", [])
        self._warm_up(self._parquet("all"), self._rows)
        try:
            yield driver
        finally:
            shutil.rmtree(self._folder / "all")

    @contextmanager
    def kafka(self, folder: Path) -> Iterator[Server]:
        """Run a broker that has the rows."""
        work = {"partitions": PARTITIONS, "messages": self._rows, "keys": KEYS}
        with kafka_spark.running(folder, **work) as server:
            # Less of it: it takes three times as long. That all is there, streaming reads check.
            places = {kafka_spark.ROWS: json.loads(self._places(0, self._written))}
            self._warm_up(self._kafka(server, endingOffsets=json.dumps(places)), self._written)
            yield server

    def _session(self) -> Server:
        assert self._driver is not None, "the node starts first, and the session with it"
        return self._driver

    def _warm_up(self, source: Source, rows: int) -> None:
        found = ask(self._session(), "count", None, source=source).messages
        assert found == rows, f"{found:,} rows are there, not {rows:,}"
        ask(self._session(), "read", None, rows=rows, source=source)

    def _copy(self, source: Source, name: str, columns: list[str]) -> None:
        source = {**source, "columns": columns}
        target: Source = {"format": "parquet", "path": str(self._folder / name)}
        ask(self._session(), "write", None, rows=self._rows, source=source, target=target)

    def _find_times(self) -> None:
        """Find when a thousandth of the rows came, those in the middle."""
        few = self._ours(**self._middle())
        span = ask(self._session(), "times", None, source=few).more
        # The end is not read any more.
        times = {"startingTimestamp": span["first"], "endingTimestamp": span["last"] + 1}
        self._times = {name: str(time_ms) for name, time_ms in times.items()}
        self._time_rows = ask(
            self._session(), "count", None, source=self._ours(**self._times)
        ).messages

    # Sources

    def _ours(self, **options: str) -> Source:
        assert self._node is not None
        place = {"servers": f"127.0.0.1:{self._node.port}", "topic": TOPIC}
        renamed = {"starting": "startingOffsets", "ending": "endingOffsets"}
        options = {renamed.get(name, name): value for name, value in options.items()}
        return {"format": "waterclock", "options": {**place, **options}}

    def _kafka(self, server: Server, **options: str) -> Source:
        options = {**kafka_spark.servers(server), **kafka_spark.READ_OPTIONS, **options}
        return {"format": "kafka", "options": options}

    def _parquet(self, name: str) -> Source:
        return {"format": "parquet", "path": str(self._folder / name)}

    def _places(self, start: int, rows: int) -> str:
        """Give the offset after so many rows of the topic, in each partition, as an option."""
        place = (start + rows) // PARTITIONS
        return json.dumps({str(partition): place for partition in range(PARTITIONS)})

    def _middle(self) -> dict[str, str]:
        half, few = self._rows // 2, max(PARTITIONS, self._rows // FILTER)
        return {"starting": self._places(half, 0), "ending": self._places(half, few)}

    # Cases

    def our_cases(self) -> list[Case]:
        """Give the cases of our node."""
        few = max(PARTITIONS, self._rows // FILTER)
        return [
            Case("read_rows", "node", self._reading(self._rows, lambda _: self._ours())),
            Case(
                "read_offsets", "node",
                self._reading(few, lambda _: self._ours(**self._middle())),
            ),
            Case("read_times", "node", self._read_times),
            Case(
                "stream_read_rows", "node",
                self._streaming(lambda _, **tail: self._ours(**tail)),
                f"micro-batches of {TRIGGER_ROWS:,} rows at most",
            ),
            Case("write_rows", "node", self._write_ours, "from Parquet; ids made by the sink"),
        ]  # fmt: skip

    def their_cases(self) -> list[Case]:
        """Give the cases of the peers."""
        return [
            Case("parquet_read_rows", "parquet", self._read_parquet, "Snappy, Spark's default"),
            Case("kafka_read_rows", "kafka", self._reading(self._rows, self._kafka)),
            Case("kafka_stream_read_rows", "kafka", self._streaming(self._kafka_tail)),
            Case("kafka_write_rows", "kafka", self._write_kafka, "flush.messages=1"),
        ]

    def _reading(
        self, rows: int, source: Callable[[Server], Source]
    ) -> Callable[[Server], Stopwatch]:
        return lambda server: ask(self._session(), "read", server, rows=rows, source=source(server))

    def _read_times(self, server: Server) -> Stopwatch:
        work = {"rows": self._time_rows, "source": self._ours(**self._times)}
        return ask(self._session(), "read", server, **work)

    def _read_parquet(self, driver: Server) -> Stopwatch:
        return ask(driver, "read", None, rows=self._rows, source=self._parquet("all"))

    def _streaming(self, source: Callable[..., Source]) -> Callable[[Server], Stopwatch]:
        """Read the last rows of each partition as a stream."""

        def run(server: Server) -> Stopwatch:
            starting = self._places(self._rows - self._streamed, 0)
            limit = {"maxOffsetsPerTrigger": str(TRIGGER_ROWS)}
            work = {
                "rows": self._streamed,
                "source": source(server, starting=starting, **limit),
                "checkpoint": str(self._folder / f"checkpoint-{next(self._numbers)}"),
            }
            return ask(self._session(), "stream", server, **work)

        return run

    def _kafka_tail(self, server: Server, *, starting: str, **options: str) -> Source:
        places = json.dumps({kafka_spark.ROWS: json.loads(starting)})
        return self._kafka(server, startingOffsets=places, **options)

    def _write_ours(self, server: Server) -> Stopwatch:
        place = {"topic": TARGET, "partitions": PARTITIONS}
        run_client("benchmarks.node.loading:create", server, **place)
        options = {"servers": f"127.0.0.1:{server.port}", "topic": TARGET}
        return self._write(server, {"format": "waterclock", "options": options})

    def _write_kafka(self, server: Server) -> Stopwatch:
        options = {**kafka_spark.servers(server), "topic": kafka_spark.WRITTEN}
        return self._write(server, {"format": "kafka", "options": options})

    def _write(self, server: Server, target: Source) -> Stopwatch:
        work = {"rows": self._written, "source": self._parquet("some"), "target": target}
        return ask(self._session(), "write", server, **work)
