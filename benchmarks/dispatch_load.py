"""Publishes to a fleet of workers, and sees when the last result is in the output stream.

The commands a publisher sends are encoded beforehand, by the code of each queue, and kept in a
file: publishing is the same for all, pipelined over one connection, and costs none of them what its
own encoding would. The clock runs from the first command to the last entry of the output.
"""

import json
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.client import Stopwatch
from benchmarks.peers.redis import request

OUTPUT = "output"
"""The stream that each job adds one entry to."""
CHUNK = 500
"""Commands sent together."""
CHUNKS_UNANSWERED_MAX = 4
POLL_S = 0.003
STALL_S_MAX = 60
SIZE = struct.Struct(">II")
Answer = Any
"""What Redis answers: bytes, a number, None, or a list of these."""
KINDS = ("temperature", "humidity", "pressure", "voltage")


def body(number: int) -> bytes:
    """Give a message as a device would send it."""
    reading = {
        "message_id": number,
        "device": f"sensor-{number % 1_000:04}",
        "kind": KINDS[number % len(KINDS)],
        "value": round(20 + number % 977 / 97, 3),
        "at_ms": 1_800_000_000_000 + 5 * number,
    }
    return json.dumps(reading).encode()


def write_commands(file: Path, commands: Iterable[tuple[str | int | bytes, ...]]) -> None:
    """Keep commands in a file, in chunks."""
    with file.open("wb") as out:
        chunk: list[bytes] = []

        def flush() -> None:
            data = b"".join(chunk)
            out.write(SIZE.pack(len(chunk), len(data)) + data)
            chunk.clear()

        for command in commands:
            chunk.append(request(*command))
            if len(chunk) == CHUNK:
                flush()
        if chunk:
            flush()


def read_chunks(file: Path) -> Iterator[tuple[int, bytes]]:
    """Give how many commands each chunk has, and its bytes."""
    data = file.read_bytes()
    position = 0
    while position < len(data):
        count, size = SIZE.unpack_from(data, position)
        position += SIZE.size
        yield count, data[position : position + size]
        position += size


class Wire:
    """A connection to Redis that pipelines, and reads answers as fast as Python can."""

    def __init__(self, port: int) -> None:
        import socket

        import hiredis

        self._socket = socket.create_connection(("127.0.0.1", port))
        self._reader: Any = hiredis.Reader()

    def send(self, data: bytes) -> None:
        """Send commands."""
        self._socket.sendall(data)

    def answers(self, count: int) -> list[Any]:
        """Give so many answers. An error is raised."""
        found: list[Any] = []
        while len(found) < count:
            answer = self._reader.gets()
            if answer is False:
                self._reader.feed(self._socket.recv(1 << 16))
                continue
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        return found

    def ask(self, *args: str | int | bytes) -> Answer:
        """Send one command and give its answer."""
        self.send(request(*args))
        return self.answers(1)[0]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def through(
    watch: Stopwatch, port: int, *, commands: str, warm_up: str, output: str = OUTPUT,
    window: int = 0,
) -> None:  # fmt: skip
    """Publish all commands of a file, after some to warm up; see all results come.

    With a `window`, no more than so many are on their way: what nobody stores must not overflow.
    """
    wire = Wire(port)
    chunks = list(read_chunks(Path(commands)))
    messages = sum(count for count, _ in chunks)
    warm = list(read_chunks(Path(warm_up)))
    extra = sum(count for count, _ in warm)
    _publish(wire, warm, output, 0, window)
    _wait(wire, output, extra)
    with watch.running(messages):
        _publish(wire, chunks, output, extra, window)
        _wait(wire, output, extra + messages)
    watch.more["twice"] = _repeated(wire, output, messages=messages + extra)
    wire.close()


def _publish(
    wire: Wire, chunks: list[tuple[int, bytes]], output: str, before: int, window: int
) -> None:
    unanswered: list[int] = []
    sent = before
    for count, data in chunks:
        if window:
            _wait(wire, output, sent + count - window)
        wire.send(data)
        sent += count
        unanswered.append(count)
        if window or len(unanswered) == CHUNKS_UNANSWERED_MAX:
            wire.answers(unanswered.pop(0))
    for count in unanswered:
        wire.answers(count)


def _wait(wire: Wire, output: str, count: int) -> None:
    """Return once the output has so many entries; fail if it stalls."""
    seen, since = -1, time.monotonic()
    while True:
        length = wire.ask("XLEN", output)
        if length >= count:
            return
        if length != seen:
            seen, since = length, time.monotonic()
        elif time.monotonic() - since > STALL_S_MAX:
            raise TimeoutError(f"the output stays at {length} of {count} entries")
        time.sleep(POLL_S)


def _repeated(wire: Wire, output: str, *, messages: int) -> int:
    """Count the entries that are there again; fail if a message is missing."""
    seen: Counter[int] = Counter()
    last = "-"
    while True:
        page = wire.ask("XRANGE", output, last, "+", "COUNT", 10_000)
        if not page:
            break
        for entry, fields in page:
            seen[number_of(fields)] += 1
            last = f"({entry.decode()}"
    missing = messages - len(seen)
    if missing:
        raise AssertionError(f"{missing} of {messages} messages are not in the output")
    return seen.total() - messages


def number_of(fields: list[bytes]) -> int:
    """Give the number of the message that an entry tells of."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    return int(named[b"message_id"])
