"""A node beside Spark, as a process of its own: killed, started again, at the same ports.

Everything here waits without an event loop, as a Spark driver does.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.kit.processes import bugs_in
from waterclock.client._sync.client import BlockingClient, connect_blocking
from waterclock.client.settings import ClientSettings
from waterclock.log.schema import MESSAGES
from waterclock.spark.write import sender

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
END_S_MAX = 60.0
MAIN = """
import json, sys
from tests.integration.node_main import main
from waterclock.node import log_cleaner
log_cleaner.EVERY_MS = int(sys.argv[2])
main(json.loads(sys.argv[1]))
"""


class SparkNode:
    """One node, however often it is started; `client` is connected to it."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, dict[str, Any]] | None = None,
        *,
        cleaner_ms: int = 60_000,
    ) -> None:
        self.folder = folder
        self._cleaner_ms = cleaner_ms
        self.log_file = folder / "node.log"
        self.grpc_port = self.http_port = 0
        self.client: BlockingClient
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """What the option `servers` is to say."""
        return f"{HOST}:{self.grpc_port}"

    def start(self) -> None:
        """Start a process and wait until it takes requests."""
        assert self._process is None
        own = {
            "node": {"name": "spark", "data_folder": str(self.folder / "data")},
            "cluster": {"grpc_port": self.grpc_port, "http_port": self.http_port},
            "schedule": {"tick_ms": 10},
            "log": {"preallocate_bytes": 1 << 20},  # there are hundreds of topics
        }
        config = json.dumps({"settings": {**own, **self._settings}})
        command = [sys.executable, "-c", MAIN, config, str(self._cleaner_ms)]
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, bufsize=0
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log_file.read_text(errors="replace")[-2000:]
        ports = json.loads(line)
        self.grpc_port, self.http_port = ports["grpc_port"], ports["http_port"]

    def kill(self) -> None:
        """End it at once, whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._ended()

    def stop(self) -> None:
        """Tell it to stop, and see that it ends well."""
        if self._process is not None:
            self._process.terminate()
            assert self._ended() == 0, self.log_file.read_text(errors="replace")[-2000:]

    def _ended(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        code = self._process.wait(END_S_MAX)
        self._process = None
        return code

    def bugs(self) -> list[str]:
        """Return what its log says of things that nobody planned."""
        return bugs_in(self.log_file)

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
    node = SparkNode(folder, settings, cleaner_ms=cleaner_ms)
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
    opened = sender._clients.pop((node.servers,), None)
    if opened is not None:
        _, loop_thread = opened
        loop_thread.stop()
