"""DynamoDB Local, Amazon's own stand-in for the service, keeping its data in files.

It listens on all interfaces and cannot be told otherwise; there is nothing in it but test data.
It acknowledges a transaction some milliseconds before it is on its way to the disk, which the
service itself does not: killed, it would lose what it acknowledged. So it is asked to end.
"""

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.cache import Absent, maven
from benchmarks.peers.server import free_port, started
from tests.stores.backend import Backend, numbered
from tests.stores.servers.restarting import Restarting, restarting

GROUP, ARTIFACT, VERSION = "software.amazon.dynamodb", "DynamoDBLocal", "3.0.0"
MAIN = "software.amazon.dynamodb.services.local.main.ServerRunner"
HEAP_MB = 512
# Any will do, but there must be some.
KEYS = {"AWS_ACCESS_KEY_ID": "waterclock", "AWS_SECRET_ACCESS_KEY": "waterclock"}


class Ending(Restarting):
    """A server that saves what it has before it is away."""

    def kill(self) -> None:
        """End it in good order."""
        self.stop()


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Run a server."""
    java = shutil.which("java")
    if java is None:
        raise Absent("there is no Java to run DynamoDB Local with")
    jars, port, data = maven(GROUP, ARTIFACT, VERSION), free_port(), folder / "data"
    data.mkdir(parents=True)
    command: list[str | Path] = [
        java, f"-Xmx{HEAP_MB}m", f"-Djava.library.path={jars}", "-cp", f"{jars}/*", MAIN,
        "-dbPath", data, "-sharedDb", "-disableTelemetry", "-port", str(port),
    ]  # fmt: skip

    def run() -> Any:
        return started(command, folder=folder, port=port, is_ready=lambda: _answers(port))

    for name, value in KEYS.items():
        os.environ.setdefault(name, value)
    with restarting(Ending(run)) as server:
        endpoint = f"http://127.0.0.1:{port}"
        urls = numbered(f"dynamodb://local/streams_{{}}?endpoint={endpoint}")
        yield Backend(
            name="dynamodb", fresh_url=lambda: next(urls), server=server, paged=2_000, batch=500
        )


def _answers(port: int) -> bool:
    """Tell whether it answers, be it that the question is wrong."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError:
        return False
    return True
