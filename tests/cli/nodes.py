"""Nodes to call: real ones, each in a process of its own, started as anybody would start them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class RunningNode(NamedTuple):
    """A node and what it said of itself."""

    process: "subprocess.Popen[str]"
    shown: dict[str, Any]

    @property
    def address(self) -> str:
        """Where it listens for gRPC."""
        return str(self.shown["grpc_address"])


@contextmanager
def running(data: Path, *arguments: str) -> Iterator[RunningNode]:
    """Run a node on free ports; it does not outlive the block."""
    command = [sys.executable, "-m", "waterclock", "up", "--json", "--data", str(data)]
    ports = ["--grpc-port", "0", "--http-port", "0"]
    with subprocess.Popen(
        [*command, *ports, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield RunningNode(process, json.loads(process.stdout.readline()))
        finally:
            process.kill()
