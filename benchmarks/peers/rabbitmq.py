"""RabbitMQ: a quorum queue and a stream, over AMQP 0-9-1 by raw socket, with publisher confirms.

A quorum queue writes its log through to the disk before it confirms, as we do, and many messages
share an fsync. A stream confirms before any fsync: measured too, and named for it.
"""

import os
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import Server, free_port, started
from benchmarks.peers.wire import VALUE, Marks, connect, pump, received

NAME = "rabbitmq"
PACKAGE = "rabbitmq-server"
START_S_MAX = 90
BATCH = 1_000
CHANNEL = 1
FRAME_BYTES_MAX = 131_072
END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
DURABLE = 0b10
CONFIG = """
listeners.tcp.1 = 127.0.0.1:{port}
distribution.listener.port_range.min = {distribution_port}
distribution.listener.port_range.max = {distribution_port}
log.console.level = error
heartbeat = 0
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 100MB
"""


def programs() -> Programs:
    """Find it or fetch it. What was fetched looks for itself where it lies."""
    its = debian(PACKAGE, ["rabbitmq-server", "erl"])
    if its.root is not None:
        _move_erlang(its.root)
    return its


def _move_erlang(root: Path) -> None:
    """Debian writes /usr/lib/erlang into Erlang's start script; write where it is instead."""
    home = root / "usr" / "lib" / "erlang"
    script = home / "bin" / "erl"
    text = script.read_text()
    if "ROOTDIR=/usr/lib/erlang" in text:
        script.write_text(text.replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={home}"))


def _home(its: Programs) -> Path:
    """Give the folder RabbitMQ is in."""
    root = its.root or Path("/")
    return max((root / "usr" / "lib" / "rabbitmq" / "lib").glob("rabbitmq_server-*"))


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a broker, and the port mapper that Erlang needs."""
    its, port, mapper_port = programs(), free_port(), free_port()
    root = its.root or Path("/")
    home = _home(its)
    folder.mkdir(parents=True)
    config = folder / "rabbitmq.conf"
    config.write_text(CONFIG.format(port=port, distribution_port=free_port()))
    environ = its.environ() | {
        "PATH": f"{root}/usr/lib/erlang/bin{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_HOME": str(home),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
    }
    (folder / "plugins").write_text("[].\n")
    with ExitStack() as stack:
        mapper = [shutil.which("epmd", path=environ["PATH"]) or "epmd", "-port", str(mapper_port)]
        stack.enter_context(
            started(mapper, folder=folder / "epmd", port=mapper_port, environ=environ)
        )
        command = [home / "sbin" / "rabbitmq-server"]
        server = stack.enter_context(started(command, folder=folder, port=port, environ=environ))
        server.version = home.name.rpartition("-")[2]
        yield server


# The protocol: frames of type, channel, size, payload, end


def frame(kind: int, payload: bytes, *, channel: int = CHANNEL) -> bytes:
    """Encode a frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def method(
    class_id: int, method_id: int, arguments: bytes = b"", *, channel: int = CHANNEL
) -> bytes:
    """Encode a call."""
    return frame(METHOD, struct.pack(">HH", class_id, method_id) + arguments, channel=channel)


def text(value: str) -> bytes:
    """Encode a short string."""
    return struct.pack(">B", len(value)) + value.encode()


def blob(value: bytes) -> bytes:
    """Encode a long string, or a table whose fields are encoded."""
    return struct.pack(">I", len(value)) + value


def table(**fields: str | int) -> bytes:
    """Encode a table; an underscore stands for a hyphen."""
    parts = []
    for name, value in fields.items():
        encoded = (
            b"S" + blob(value.encode())
            if isinstance(value, str)
            else struct.pack(">cq", b"l", value)
        )
        parts.append(text(name.replace("_", "-")) + encoded)
    return blob(b"".join(parts))


class Frames:
    """Cuts what is received into payloads of method frames."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take what was received; give type and payload of each frame that is whole."""
        data = self._tail + data
        found, at = [], 0
        while at + 7 <= len(data):
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if at + 8 + size > len(data):
                break
            found.append((kind, data[at + 7 : at + 7 + size]))
            at += 8 + size
        self._tail = data[at:]
        return found


def expect(wire: socket.socket, class_id: int, method_id: int) -> bytes:
    """Wait for a call; give its arguments."""
    frames = Frames()
    while True:
        for kind, payload in frames.feed(received(wire)):
            if kind == METHOD and struct.unpack_from(">HH", payload) == (class_id, method_id):
                return payload[4:]
            if kind == METHOD and struct.unpack_from(">HH", payload) in ((10, 50), (20, 40)):
                raise RuntimeError(f"RabbitMQ refused: {payload!r}")


@contextmanager
def opened(port: int, *, is_confirming: bool = False) -> Iterator[socket.socket]:
    """Connect, log in and open the channel."""
    with connect(port) as wire:
        wire.sendall(b"AMQP\x00\x00\x09\x01")
        expect(wire, 10, 10)
        login = blob(b"") + text("PLAIN") + blob(b"\0guest\0guest") + text("en_US")
        wire.sendall(method(10, 11, login, channel=0))
        expect(wire, 10, 30)
        wire.sendall(method(10, 31, struct.pack(">HIH", CHANNEL, FRAME_BYTES_MAX, 0), channel=0))
        wire.sendall(method(10, 40, text("/") + text("") + b"\0", channel=0))
        expect(wire, 10, 41)
        wire.sendall(method(20, 10, text("")))
        expect(wire, 20, 11)
        if is_confirming:
            wire.sendall(method(85, 10, b"\0"))
            expect(wire, 85, 11)
        yield wire


def declare(wire: socket.socket, **arguments: str | int) -> str:
    """Create a durable queue; give its name."""
    queue = f"queue-{time.monotonic_ns()}"
    call = struct.pack(">H", 0) + text(queue) + bytes([DURABLE]) + table(**arguments)
    wire.sendall(method(50, 10, call))
    expect(wire, 50, 11)
    return queue


def delete(wire: socket.socket, queue: str) -> None:
    """Delete a queue with all that is in it."""
    wire.sendall(method(50, 40, struct.pack(">H", 0) + text(queue) + b"\0"))
    expect(wire, 50, 41)


def publication(queue: str, *, expires_ms: int | None = None) -> bytes:
    """Encode a persistent message to a queue."""
    call = method(60, 40, struct.pack(">H", 0) + text("") + text(queue) + b"\0")
    # Property flags: delivery mode, and expiration.
    flags = 0x1000 | (0x0100 if expires_ms is not None else 0)
    properties = b"\x02" + (text(str(expires_ms)) if expires_ms is not None else b"")
    head = struct.pack(">HHQH", 60, 0, len(VALUE), flags) + properties
    return call + frame(HEADER, head) + frame(BODY, VALUE)


class Confirms:
    """Counts confirmed messages; they come out of order, one by one or up to a tag."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._up_to = 0
        self._beyond: set[int] = set()
        self._count = 0

    def feed(self, data: bytes) -> int:
        """Take what was received; give how many more are confirmed."""
        for _, payload in self._frames.feed(data):
            call = struct.unpack_from(">HH", payload)
            if call != (60, 80):
                raise RuntimeError(f"RabbitMQ refused: {payload!r}")
            tag, is_multiple = struct.unpack_from(">QB", payload, 4)
            if is_multiple:
                self._up_to = max(self._up_to, tag)
            else:
                self._beyond.add(tag)
        self._beyond = {tag for tag in self._beyond if tag > self._up_to}
        before, self._count = self._count, self._up_to + len(self._beyond)
        return self._count - before


# Clients


def publish(watch: Stopwatch, port: int, *, kind: str, messages: int, window: int) -> None:
    """Publish to a new queue of a kind, at most a window of batches unconfirmed."""
    with opened(port, is_confirming=True) as wire:
        queue = declare(wire, x_queue_type=kind)
        batches = repeat(publication(queue) * BATCH, messages // BATCH)
        with watch.running(messages):
            pump(wire, batches, answers=BATCH, window=window, feed=Confirms().feed)
        delete(wire, queue)


def schedule(watch: Stopwatch, port: int, *, messages: int, window: int) -> None:
    """Publish messages that expire tomorrow, and go to another queue then."""
    with opened(port, is_confirming=True) as wire:
        due = declare(wire, x_queue_type="quorum")
        dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": due}
        queue = declare(wire, x_queue_type="quorum", **dead)
        batches = repeat(publication(queue, expires_ms=86_400_000) * BATCH, messages // BATCH)
        with watch.running(messages):
            pump(wire, batches, answers=BATCH, window=window, feed=Confirms().feed)


def consume(watch: Stopwatch, port: int, *, messages: int, batch: int, window: int) -> None:
    """Fill a queue, then have it delivered; an acknowledgement covers a batch."""
    # A body is a frame of its own, so its value is found whole, and once.
    count, done = Marks(VALUE), 0
    with opened(port, is_confirming=True) as wire:
        queue = declare(wire, x_queue_type="quorum")
        batches = repeat(publication(queue) * BATCH, messages // BATCH)
        pump(wire, batches, answers=BATCH, window=window, feed=Confirms().feed)
        wire.sendall(method(60, 10, struct.pack(">IHB", 0, batch * window, 0)))
        expect(wire, 60, 11)
        begin = struct.pack(">H", 0) + text(queue) + text("") + b"\0" + table()
        with watch.running(messages):
            wire.sendall(method(60, 20, begin))
            while done < messages:
                before, done = done, done + count.feed(received(wire))
                if done // batch > before // batch or done == messages:
                    wire.sendall(method(60, 80, struct.pack(">QB", done, 1)))
        delete(wire, queue)
