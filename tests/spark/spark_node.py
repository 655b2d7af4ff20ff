"""A node beside Spark, as a process of its own: killed, started again, at the same ports.

Everything here waits without an event loop, as a Spark driver does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.kit.node import RestartableNode
from waterclock.client._sync.client import BlockingClient, connect_blocking
from waterclock.client.settings import ClientSettings
from waterclock.log.schema import MESSAGES
from waterclock.spark.write import sender

SETTINGS: dict[str, dict[str, Any]] = {
    "schedule": {"tick_ms": 10},
    "log": {"preallocate_bytes": 1 << 20},  # there are hundreds of topics
}


class SparkNode(RestartableNode):
    """One node, however often it is started; `client` is connected to it."""

    client: BlockingClient

    @property
    def servers(self) -> str:
        """What the option `servers` is to say."""
        return self.address

    def start(self) -> None:
        """Start a process and wait until it takes requests."""
        ports = {"grpc_port": self.grpc_port, "http_port": self.http_port}
        self._settings["cluster"] = ports
        self.spawn()
        self.wait_ready()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self.process.kill()
        self._process = None

    def stop(self) -> None:
        """Tell it to stop, and see that it ends well."""
        if self._process is not None:
            self.terminate()
            assert self.wait_end() == 0, self.last_words()

    def fill(
        self, topic: str, partition: int, count: int, *, first: int = 0, **columns: Any
    ) -> int:
        """Publish `count` numbered messages in one batch; return the first one's offset.

        Ids, keys and values tell the number; `columns` replace them.
        """
        numbers = range(first, first + count)
        made = {
            "message_id": [f"{topic}/{partition}/{n}".encode() for n in numbers],
            "key": [f"key-{n % 10}".encode() for n in numbers],
            "value": [f"value {n}".encode() for n in numbers],
            "headers": [None] * count,
            "due_ms": [None] * count,
        }
        batch = pa.RecordBatch.from_pydict({**made, **columns}, schema=MESSAGES)
        receipt = self.client.publish_arrow(topic, batch, partition=partition)
        return int(receipt.offsets[0])


@contextmanager
def running(
    folder: Path,
    settings: dict[str, dict[str, Any]] | None = None,
    *,
    cleaner_ms: int = 60_000,
) -> Iterator[SparkNode]:
    """Run a node with a client; see at the end that it came to no unplanned trouble.

    `cleaner_ms` is how often retention looks.
    """
    node = SparkNode(folder, {**SETTINGS, **(settings or {})}, cleaner_ms=cleaner_ms)
    node.start()
    try:
        with connect_blocking(node.servers, ClientSettings(retry_delay_ms=10)) as client:
            node.client = client
            yield node
    finally:
        _close_client(node)
        node.stop()
    assert node.bugs() == []


def _close_client(node: SparkNode) -> None:
    """Close what tasks that ran in this process have left open for the next: there is none."""
    opened = sender._clients.pop(sender._Where((node.servers,)), None)
    if opened is not None:
        _, loop_thread = opened
        loop_thread.stop()
