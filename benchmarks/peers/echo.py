"""The floor: what one Python process can do at all, if it does nothing.

An `asyncio.Protocol` on uvloop, as our node has it, and httptools, which is llhttp; each request is
answered with its own body, or its target if it has none. There is no route, no header is looked at,
there is no limit, no deadline and no error: a server in Python that is of use is slower than this.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import httptools
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.load import names, play
from benchmarks.machine import ROOT
from benchmarks.node.streaming import receive_from, send_to
from benchmarks.peers.server import Server, free_port, started

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Echo(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it to answer on."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Have it parsed, which calls back."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Keep the target."""
        self._said = url

    def on_body(self, body: bytes) -> None:
        """Keep the body instead."""
        self._said = body

    def on_message_complete(self) -> None:
        """Answer."""
        self._transport.write(HEAD % (len(self._said), self._said))


async def serve(port: int) -> None:
    """Answer until the process ends."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port, backlog=4_096)
    await server.serve_forever()


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run it."""
    port = free_port()
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.peers.echo", str(port)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(command, folder=folder, port=port, environ=environ) as server:
        server.version = httptools.__version__
        yield server


# Clients


def send(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Ask what a sender asks of our node."""
    play(watch, port, [send_to(name) for name in names("send", streams)], seconds=seconds)


def receive(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Ask what a receiver asks of our node."""
    play(watch, port, [receive_from(name) for name in names("receive", streams)], seconds=seconds)


def send_receive(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Ask both in turn."""
    found = names("both", streams)
    both = [request for name in found for request in (send_to(name), receive_from(name))]
    play(watch, port, both, seconds=seconds)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
