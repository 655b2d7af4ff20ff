"""What dispatchers and workers count, and the small HTTP server that shows it: `/metrics` for
Prometheus, `/health` for probes.

Counting is plain arithmetic, in bulk, on the loop; families are made when Prometheus scrapes. The
server is a few lines of HTTP/1.1: one request a connection, of which only the path is read.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8_192
REQUEST_S_MAX = 5.0


def _counter(help_text: str) -> int:
    """Return the field of a count that begins at 0, with what it counts."""
    counter: int = field(default=0, metadata={"help": help_text})
    return counter


@dataclass(slots=True)
class WorkerCounts:
    """What a worker did since it started."""

    received: int = _counter("Messages that leaders handed to this worker, repeats included.")
    written: int = _counter("Messages that this worker wrote to the sink.")
    repeats: int = _counter("Messages that the sink had already, so that they were not written.")
    skipped: int = _counter("Messages for which the handler returned None.")
    failed: int = _counter("Messages that were given back to the leader with a reason.")
    retried: int = _counter("Attempts to write a message that found the sink's server away.")
    extended: int = _counter("Times a message was reported as still being worked on.")
    refused_frames: int = _counter("Frames refused because their leader's epoch is over.")
    refused_messages: int = _counter("Messages in these frames.")
    refused_writes: int = _counter("Messages that the sink refused: a leader's epoch was over.")


@dataclass(slots=True)
class DispatcherCounts:
    """What a dispatcher did since it started, over all the times it led."""

    received: int = _counter("Messages that came from the source.")
    added: int = _counter("Messages that the leader took into memory.")
    repeated: int = _counter("Messages that the source brought while the leader had them.")
    handed_out: int = _counter("Messages handed to workers, redeliveries included.")
    redelivered: int = _counter("Messages handed out that had been handed out before.")
    acked: int = _counter("Messages that workers acknowledged.")
    nacked: int = _counter("Messages that workers gave back with a reason.")
    expired: int = _counter("Messages that were not answered by their deadline.")
    orphaned: int = _counter("Messages that were with a worker when its connection ended.")
    dead_lettered: int = _counter("Messages written to the dead stream.")
    lost: int = _counter(
        "Messages known to be lost: heard and not kept for want of room, or trimmed from the stream"
        " before they were done."
    )
    gaps: int = _counter(
        "Times that messages of a channel may have been missed: a subscription broke, or a new"
        " leader did not know where the last one stopped."
    )
    elections: int = _counter("Times this dispatcher became the leader.")
    stale: int = _counter("Times it learned that another leads under a higher epoch.")
    bad_connections: int = _counter("Connections closed for what they sent.")


GAUGES = {
    "epoch": "The epoch of the leader that this program is, or works for; 0 if none.",
    "is_leading": "1 while this dispatcher leads.",
    "pending": "Messages that workers have, within their deadline.",
    "queued": "Messages in memory that wait for a worker.",
    "workers": "Workers that have joined this dispatcher.",
    "is_connected": "1 while this worker is connected to a leader.",
    "held": "Messages that this worker has and has not answered.",
}


class Counts(Collector):
    """A collector of one of these, with some gauges beside."""

    def __init__(
        self,
        prefix: str,
        counts: WorkerCounts | DispatcherCounts,
        gauges: Callable[[], Mapping[str, float]],
    ) -> None:
        self._prefix = prefix
        self._counts = counts
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """Yield everything, for a registry."""
        for each in fields(self._counts):
            yield CounterMetricFamily(
                f"{self._prefix}_{each.name}",
                each.metadata["help"],
                value=getattr(self._counts, each.name),
            )
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", GAUGES[name], value=value)


class Health:
    """Answers for one program. `facts` has at least `is_healthy`."""

    def __init__(self, collector: Collector, facts: Callable[[], Mapping[str, object]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._facts = facts

    async def serve(self, host: str, port: int) -> None:
        """Answer until cancelled."""
        server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES_MAX)
        try:
            await server.serve_forever()
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.response(head.split(b" ", 2)[1].decode(errors="replace")))
                await writer.drain()
        except (OSError, TimeoutError, EOFError, IndexError, asyncio.LimitOverrunError) as error:
            log.debug("probe_failed error=%r", error)
        finally:
            writer.close()

    def response(self, path: str) -> bytes:
        """Return the whole answer to a GET of a path."""
        status, kind, body = "404 Not Found", "text/plain", b"only /metrics and /health are here\n"
        if path.startswith("/metrics"):
            status, kind = "200 OK", "text/plain; version=0.0.4; charset=utf-8"
            body = generate_latest(self._registry)
        elif path.startswith("/health"):
            facts = self._facts()
            status = "200 OK" if facts["is_healthy"] else "503 Service Unavailable"
            kind, body = "application/json", json.dumps(facts).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body
