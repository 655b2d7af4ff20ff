"""NATS JetStream: one stream in files, on one server or replicated over three, by raw socket.

`sync_interval: always` is what we promise. Published one by one, each message then gets an fsync of
its own; an atomic batch of up to 1000 gets one, which makes it the fastest equally durable way in.
By default JetStream answers before any fsync: measured too, and named for it.
"""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Absent, Programs, debian, go, program_version
from benchmarks.peers.pacing import Conversation, tell
from benchmarks.peers.server import Server, free_port, is_listening, started, started_together
from benchmarks.peers.wire import VALUE, Marks, connect, drain, pump, received

NAME = "jetstream"
MODULE, VERSION = "github.com/nats-io/nats-server/v2", "v2.15.2"
BATCH = 1_000
"""An atomic batch has no more."""
STREAM, SUBJECT, CONSUMER, INBOX = "S", "s", "C", "_INBOX.a"

CONFIG = """
listen: "127.0.0.1:{port}"
ping_interval: "1h"
write_deadline: "60s"
max_pending: 1GB
jetstream {{
  store_dir: "{folder}"
  sync_interval: {sync}
  max_file_store: 64GB
}}
"""
REPLICATED = """
server_name: "{name}"
cluster {{
  name: "bench"
  listen: "127.0.0.1:{route_port}"
  routes: [{routes}]
}}
"""
REPLICAS = 3
FORMED_S_MAX = 60.0
PAUSE_S = 0.2


def programs() -> Programs:
    """Build the newest, or take Debian's."""
    try:
        return Programs(go(MODULE, VERSION))
    except Absent:
        return debian("nats-server", ["nats-server"])


@contextmanager
def running(folder: Path, *, is_durable: bool = True) -> Iterator[Server]:
    """Run a server with an empty stream."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    config = folder / "nats.conf"
    sync = "always" if is_durable else '"2m"'
    config.write_text(CONFIG.format(port=port, folder=folder, sync=sync))
    command: list[str | Path] = [its.find("nats-server"), "-c", config]
    with started(command, folder=folder, port=port, environ=its.environ()) as server:
        server.version = program_version(its, "nats-server", "--version")
        create_stream(server.port)
        yield server


@contextmanager
def running_replicated(folder: Path) -> Iterator[Server]:
    """Run three servers with an empty stream on all of them, of which the server's leads."""
    its, names = programs(), [f"n{number}" for number in range(1, REPLICAS + 1)]
    ports, route_ports = [[free_port() for _ in names] for _ in range(2)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in route_ports)
    commands: list[list[str | Path]] = []
    for name, port, route_port in zip(names, ports, route_ports, strict=True):
        (folder / name).mkdir(parents=True)
        config = folder / f"{name}.conf"
        one = CONFIG.format(port=port, folder=folder / name, sync="always")
        config.write_text(one + REPLICATED.format(name=name, route_port=route_port, routes=routes))
        commands.append([its.find("nats-server"), "-c", config])
    with started_together(
        commands, folder=folder, port=ports[0], environ=its.environ(),
        is_ready=lambda: all(map(is_listening, ports)),
    ) as server:  # fmt: skip
        server.version = program_version(its, "nats-server", "--version")
        create_replicated_stream(server.port)
        yield server


def create_stream(port: int, *, replicas: int = 1) -> None:
    """Begin the stream, or begin it anew."""
    with opened(port) as wire:
        ask(wire, f"STREAM.DELETE.{STREAM}", {}, is_sure=False)
        config = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "allow_atomic": True}
        ask(wire, f"STREAM.CREATE.{STREAM}", {**config, "num_replicas": replicas})


def create_replicated_stream(port: int) -> None:
    """Begin the stream anew on all servers, and have the first lead it: clients ask it directly.

    Servers that were just started do not know each other yet, so that is asked again for a while.
    """
    deadline = time.monotonic() + FORMED_S_MAX
    wanted = "n1"
    while True:
        try:
            create_stream(port, replicas=REPLICAS)
            break
        except (RuntimeError, ValueError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
    with opened(port) as wire:
        while True:
            group = ask(wire, f"STREAM.INFO.{STREAM}", {}, is_sure=False).get("cluster", {})
            others = group.get("replicas", [])
            if group.get("leader") == wanted and all(each.get("current") for each in others):
                return
            if time.monotonic() > deadline:
                raise Absent(f"JetStream does not form a stream of {REPLICAS} replicas: {group}")
            if group.get("leader", wanted) != wanted:
                placement = {"placement": {"preferred": wanted}}
                ask(wire, f"STREAM.LEADER.STEPDOWN.{STREAM}", placement, is_sure=False)
            time.sleep(PAUSE_S)


# The protocol


@contextmanager
def opened(port: int, *, inbox: str = INBOX) -> Iterator[socket.socket]:
    """Connect, and listen to what is sent to an inbox."""
    with connect(port) as wire:
        received(wire)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        wire.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {inbox} 1\r\nPING\r\n".encode())
        while b"PONG" not in received(wire):
            pass
        yield wire


def ask(
    wire: socket.socket, call: str, body: dict[str, Any], *, is_sure: bool = True
) -> dict[str, Any]:
    """Call JetStream's own API."""
    wire.sendall(publication(f"$JS.API.{call}", json.dumps(body).encode()))
    data = b""
    while True:
        data += received(wire)
        head, found, rest = data.partition(b"\r\n")
        if found and len(rest) >= int(head.split()[-1]) + 2:
            break
    answer: dict[str, Any] = json.loads(rest[: int(head.split()[-1])])
    if is_sure and "error" in answer:
        raise RuntimeError(f"{call}: {answer['error']}")
    return answer


def publication(subject: str, body: bytes, *, has_answer: bool = True) -> bytes:
    """Encode a message."""
    reply = f" {INBOX}" if has_answer else ""
    return b"PUB %s %d\r\n%s\r\n" % (f"{subject}{reply}".encode(), len(body), body)


def atomic_batch(number: int) -> bytes:
    """Encode a batch that is stored whole or not at all, and answered once."""
    parts = []
    for row in range(1, BATCH + 1):
        is_last = row == BATCH
        head = b"NATS/1.0\r\nNats-Batch-Id: %d\r\nNats-Batch-Sequence: %d\r\n" % (number, row)
        head += b"Nats-Batch-Commit: 1\r\n\r\n" if is_last else b"\r\n"
        subject = f"{SUBJECT} {INBOX}" if is_last else SUBJECT
        sizes = len(head), len(head) + len(VALUE)
        parts.append(b"HPUB %s %d %d\r\n%s%s\r\n" % (subject.encode(), *sizes, head, VALUE))
    return b"".join(parts)


# Clients


def publish_atomic(
    watch: Stopwatch, port: int, *, messages: int, window: int, connections: int = 1
) -> None:
    """Publish atomic batches, at most a window of them unanswered on each connection."""
    batches = [atomic_batch(number) for number in range(messages // BATCH)]

    def send(wire: socket.socket, part: list[bytes]) -> None:
        answers = Marks(b'"seq":', bad=b'"error"')
        pump(wire, part, answers=1, window=window, feed=answers.feed)

    inboxes = [INBOX, *(f"{INBOX}{number}" for number in range(1, connections))]
    parts = [batches[number::connections] for number in range(connections)]
    for inbox, part in zip(inboxes, parts, strict=True):
        part[:] = [batch.replace(INBOX.encode(), inbox.encode()) for batch in part]
    with ExitStack() as stack:
        wires = [stack.enter_context(opened(port, inbox=inbox)) for inbox in inboxes]
        threads = stack.enter_context(ThreadPoolExecutor(connections))
        with watch.running(messages):
            list(threads.map(send, wires, parts))


def publish(watch: Stopwatch, port: int, *, messages: int, batch: int, window: int) -> None:
    """Publish one by one, in batches as far as the socket is concerned."""
    batches = repeat(publication(SUBJECT, VALUE) * batch, messages // batch)
    answers = Marks(b'"seq":', bad=b'"error"')
    with opened(port) as wire, watch.running(messages):
        pump(wire, batches, answers=batch, window=window, feed=answers.feed)


ACK = b"$JS.ACK."
"""Each message names the subject to acknowledge it by, which begins with this."""


def consume(watch: Stopwatch, port: int, *, messages: int, batch: int, window: int) -> None:
    """Pull the whole stream; an acknowledgement covers all before it."""
    config = {"durable_name": CONSUMER, "ack_policy": "all", "max_ack_pending": 1_000_000}
    count = Marks(ACK)
    latest = b""

    def feed(data: bytes) -> int:
        nonlocal latest
        end = data.rfind(b" ", 0, data.rfind(b"\r\n"))
        start = data.rfind(ACK, 0, end)
        if start >= 0:
            latest = data[start : data.find(b" ", start)]
        return count.feed(data)

    def more() -> bytes:
        ack = publication(latest.decode(), b"+ACK", has_answer=False) if latest else b""
        call = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}"
        return ack + publication(call, json.dumps({"batch": batch}).encode())

    with opened(port) as wire:
        ask(wire, f"CONSUMER.DELETE.{STREAM}.{CONSUMER}", {}, is_sure=False)
        request = {"stream_name": STREAM, "config": config}
        ask(wire, f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", request)
        with watch.running(messages):
            drain(wire, messages=messages, batch=batch, window=window, feed=feed, request=more)


def latency(watch: Stopwatch, port: int, *, rate: int, messages: int) -> None:
    """Publish at a rate and have it pushed to us; tell how long both took."""
    # A subject of its own: those who listened before are still sent to on theirs.
    pushed = f"pushed.{time.monotonic_ns()}"
    with opened(port) as publisher, opened(port, inbox=pushed) as reader:
        config = {"deliver_subject": pushed, "deliver_policy": "new", "ack_policy": "none"}
        ask(publisher, f"CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config})
        acks = Marks(b'"seq":', bad=b'"error"')
        talk = Conversation(publisher, acks.feed, reader, Marks(ACK).feed)
        with watch.running(messages):
            times = talk.run(publication(SUBJECT, VALUE), rate=rate, messages=messages)
        tell(watch, times)
