"""A node of ours, started as anyone would, with `waterclock up`."""

import http.client
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.server import Server, free_port, started


@contextmanager
def running(folder: Path, *, is_http: bool = False, **settings: object) -> Iterator[Server]:
    """Run a node, for clients of gRPC or HTTP; a setting's name has two underscores for its dot."""
    grpc_port, http_port = free_port(), free_port()
    flags = [f"--set={name.replace('__', '.')}={value}" for name, value in settings.items()]
    command: list[str | Path] = [sys.executable, "-m", "waterclock", "up"]
    command += ["--data", folder / "data", *flags]
    command += ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    port = http_port if is_http else grpc_port
    with started(command, folder=folder, port=port, is_ready=lambda: is_ready(http_port)) as server:
        yield server


def is_ready(http_port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Tell whether the node there takes requests."""
    connection = http.client.HTTPConnection("localhost", http_port, timeout=5)
    if tls is not None:
        connection = http.client.HTTPSConnection("localhost", http_port, timeout=5, context=tls)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()
