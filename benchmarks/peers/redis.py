"""Redis: streams, and the sorted set people use as a schedule.

`appendfsync always` with an append-only file is what we promise: Redis answers after an fsync that
all who wait share. Its own `redis-benchmark` sends, the best client there is, and written in C.
"""

import csv
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Programs, debian, program_version
from benchmarks.peers.pacing import Conversation, tell
from benchmarks.peers.server import Server, free_port, started
from benchmarks.peers.wire import VALUE, Marks, connect, drain, received

NAME = "redis"
STREAM, SCHEDULE, GROUP = "stream", "schedule", "group"
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    # A rewrite of the file amid a round would be measured by chance.
    "auto-aof-rewrite-percentage": "0",
}


def programs() -> Programs:
    """Find it or fetch it."""
    return debian("redis-server", ["redis-server", "redis-benchmark"])


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a server."""
    its, port = programs(), free_port()
    folder.mkdir(parents=True)
    settings = {**SETTINGS, "port": str(port), "dir": str(folder)}
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    command = [its.find("redis-server"), *flags]
    with started(command, folder=folder, port=port, environ=its.environ()) as server:
        server.version = program_version(its, "redis-server", "--version")
        yield server


def request(*words: str | int | bytes) -> bytes:
    """Encode a command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def ask(wire: socket.socket, *words: str | int) -> bytes:
    """Send a command whose answer is short; give the answer."""
    wire.sendall(request(*words))
    answer = received(wire)
    if answer.startswith(b"-"):
        raise RuntimeError(f"{words[0]}: {answer!r}")
    return answer


def forget(port: int) -> None:
    """Drop everything, so that rounds do not fill the memory."""
    with connect(port) as wire:
        ask(wire, "FLUSHALL")


# Clients that are redis-benchmark


def publish(watch: Stopwatch, port: int, *, messages: int, clients: int, pipeline: int) -> None:
    """Add messages to the stream, each client with so many unanswered."""
    command = ["XADD", STREAM, "*", "d", VALUE.decode()]
    _benchmark(watch, port, command, requests=messages, clients=clients, pipeline=pipeline)


def schedule(watch: Stopwatch, port: int, *, messages: int, clients: int, pipeline: int) -> None:
    """Add members, each with its payload, to the sorted set."""
    # redis-benchmark writes twelve random digits in place of this, if told to by -r.
    mark = "__rand_int__"
    command = ["-r", "1000000000", "ZADD", SCHEDULE, mark, mark + VALUE.decode()[len(mark) :]]
    _benchmark(watch, port, command, requests=messages, clients=clients, pipeline=pipeline)


def _benchmark(
    watch: Stopwatch, port: int, command: list[str], *, requests: int, clients: int, pipeline: int
) -> None:
    its = programs()
    flags = {"-p": port, "-c": clients, "-P": pipeline, "-n": requests}
    words = [str(word) for flag in flags.items() for word in flag]
    program = [its.find("redis-benchmark"), *words, "--csv", *command]
    with watch.running(requests):
        run = subprocess.run(
            program, env=its.environ(), stdout=subprocess.PIPE, text=True, check=True
        )
    # Its own clock starts when it is connected.
    watch.wall_s = requests / float(list(csv.reader(run.stdout.splitlines()))[-1][1])


# Clients by raw socket

MESSAGE = b"$1\r\nd\r\n"
"""Each message of an answer has this once."""
ID = re.compile(rb"\r\n(\d+-\d+)\r\n")


def consume(
    watch: Stopwatch, port: int, *, messages: int, batch: int, window: int, has_acks: bool
) -> None:
    """Read the whole stream as the one member of a new group, and acknowledge, or need not."""
    name = f"{GROUP}-{time.monotonic_ns()}"
    done: list[bytes] = []
    count = Marks(MESSAGE)

    def feed(data: bytes) -> int:
        if has_acks:
            done.extend(ID.findall(data))
        return count.feed(data)

    def more() -> bytes:
        acks = request("XACK", STREAM, name, *done) if done else b""
        done.clear()
        noack = () if has_acks else ("NOACK",)
        words = ("XREADGROUP", "GROUP", name, "m", "COUNT", batch, *noack, "STREAMS", STREAM, ">")
        return acks + request(*words)

    with connect(port) as wire:
        ask(wire, "CONFIG", "SET", "appendfsync", "everysec")
        ask(wire, "XGROUP", "CREATE", STREAM, name, "0")
        with watch.running(messages):
            drain(wire, messages=messages, batch=batch, window=window, feed=feed, request=more)


def latency(watch: Stopwatch, port: int, *, rate: int, messages: int) -> None:
    """Add at a rate and read in a group that waits; tell how long both took."""
    name = f"{GROUP}-{time.monotonic_ns()}"
    words = ("XREADGROUP", "GROUP", name, "m", "COUNT", 1_000, "BLOCK", 0, "STREAMS", STREAM, ">")
    more = request(*words)
    answer = b""
    with connect(port) as adder, connect(port) as reader:
        ask(adder, "XGROUP", "CREATE", STREAM, name, "$", "MKSTREAM")

        def feed(data: bytes) -> int:
            nonlocal answer
            answer += data
            if (count := whole_answer(answer)) is None:
                return 0
            answer = b""
            reader.sendall(more)
            return count

        reader.sendall(more)
        talk = Conversation(adder, Marks(b"$").feed, reader, feed)
        message = request("XADD", STREAM, "*", "d", VALUE)
        with watch.running(messages):
            times = talk.run(message, rate=rate, messages=messages)
        tell(watch, times)


HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n%s\r\n\*(\d+)\r\n" % STREAM.encode())
LAST = VALUE + b"\r\n"


def whole_answer(data: bytes) -> int | None:
    """Give how many messages an answer to XREADGROUP has, or None if more of it is to come."""
    head = HEAD.match(data)
    if head is None or data.count(LAST) < int(head.group(1)):
        return None
    return int(head.group(1))
