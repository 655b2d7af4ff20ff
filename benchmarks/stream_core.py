"""In-memory streams without a server: how fast, and what idle ones take. A process of its own."""

import argparse
import json
import time
from itertools import repeat

from benchmarks.harness import scaled
from benchmarks.load import BODY
from benchmarks.machine import rss_mb
from waterclock.model.sections import StreamsConfig
from waterclock.streams.ring import Item, Ring
from waterclock.streams.streams import Streams
from waterclock.streams.waiters import Receiver, Sender

IDLE_STREAMS = 1_000_000
PAIRS = 1_000_000
STREAMS = 100
SIZE = 100
NOW_MS = 1_800_000_000_000


def idle(kind: str) -> dict[str, float]:
    """Make very many streams; tell by how much the process grew."""
    count = scaled(IDLE_STREAMS, least=10_000)
    before = rss_mb()
    streams = Streams(StreamsConfig())
    for number in range(count):
        name = f"stream-{number:07d}"
        if kind == "used":
            # A copy: each message has a body of its own.
            item = Item(bytes(bytearray(BODY)), sent_ms=NOW_MS + number)
            streams.send(Sender(name, item), size=SIZE, now_ms=number)
        receiver = Receiver(name, deadline_ms=number + 1)
        streams.receive(receiver, now_ms=number)
        streams.leave(receiver)
    return {"streams": len(streams), "mb": max(0.01, rss_mb() - before)}


def ring() -> dict[str, float]:
    """Put and get, one at a time."""
    ring, item = Ring(SIZE), Item(BODY)
    for _ in range(SIZE):
        ring.put(item)
    pairs = scaled(PAIRS, least=1_000)
    start = time.perf_counter()
    put, get = ring.put, ring.get
    for _ in repeat(None, pairs):
        put(item)
        get(ring.end)
    return {"rate": 2 * pairs / (time.perf_counter() - start)}


def core() -> dict[str, float]:
    """Send and receive in turn, as the server would."""
    streams, item = Streams(StreamsConfig()), Item(BODY)
    names = [f"stream-{number}" for number in range(STREAMS)]
    pairs = scaled(PAIRS // 4, least=1_000)
    start = time.perf_counter()
    for number in range(pairs):
        name = names[number % STREAMS]
        streams.send(Sender(name, item, deadline_ms=NOW_MS), size=SIZE, now_ms=0)
        streams.receive(Receiver(name, deadline_ms=NOW_MS), now_ms=0)
    return {"rate": 2 * pairs / (time.perf_counter() - start)}


def main() -> None:
    """Be that process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs="+", required=True)
    name, *rest = parser.parse_args().child
    print(json.dumps(idle(*rest) if name == "idle" else {"ring": ring, "core": core}[name]()))


if __name__ == "__main__":
    main()
