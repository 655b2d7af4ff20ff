"""A node as a process under test: started, killed, told to stop, started again in its folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.processes import Process, bugs_in, last_words

HOST = "127.0.0.1"
END_S_MAX = 60.0


class NodeEnded(Exception):
    """The process ended without being told to."""


class RestartableNode:
    """One node, over all its runs. `folder` holds its data and its log.

    Each run has the settings as they stand; `options` are those of tests/integration/node_main.py.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, dict[str, Any]],
        *,
        prefix: Sequence[str] = (),
        data_folder: str | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.log_file = folder / "node.log"
        self.grpc_port = self.http_port = 0
        own = {
            "node": {"name": "under-test", "data_folder": data_folder or str(folder / "data")},
            "cluster": {"grpc_port": 0, "http_port": 0},
        }
        self._settings = {**own, **settings}
        self._options = options
        self._prefix = prefix
        self._process: Process | None = None

    @property
    def address(self) -> str:
        """Where gRPC is."""
        return f"{HOST}:{self.grpc_port}"

    @property
    def process(self) -> Process:
        """The run that is, or was the last."""
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """It was started and has not ended."""
        return self._process is not None and self._process.is_running

    def spawn(self) -> None:
        """Start it; it takes no requests yet."""
        assert not self.is_running
        said = {"settings": self._settings, **self._options}
        self._process = Process(
            "tests.integration.node_main", said,
            log=self.log_file, has_output=True, prefix=self._prefix,
        )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until it takes requests."""
        line = self.process.line()
        if not line:
            raise NodeEnded(f"it ended with {self.wait_end()}: {self.last_words()}")
        ports = json.loads(line)
        self.grpc_port, self.http_port = ports["grpc_port"], ports["http_port"]

    def terminate(self) -> None:
        """Tell it to stop."""
        self.process.terminate()

    def wait_end(self) -> int:
        """Wait until it has ended; return its exit code."""
        return self.process.wait(END_S_MAX)

    def bugs(self) -> list[str]:
        """Return what its log says of things that nobody planned."""
        return bugs_in(self.log_file)

    def last_words(self, lines: int = 12) -> str:
        """Return the end of its log."""
        return last_words(self.log_file, lines)
