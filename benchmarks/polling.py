"""Polls that wait, each on a connection of its own, and a sender beside them in the same process.

One thread and one epoll, for our node and for peers alike. Between two sends it does not sleep but
looks again and again, so what is measured is the server and not how fast this process wakes up.
"""

import gc
import re
import resource
import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.client import Stopwatch
from benchmarks.harness import is_smoke
from benchmarks.load import BODY_BYTES, answer_bytes, names
from benchmarks.peers.pacing import Schedule, Seconds, percentiles
from benchmarks.peers.server import process_ids
from benchmarks.peers.wire import SILENCE_S_MAX, connect

SENDERS = 16
"""Connections of the sender."""
STREAM_WAITERS = 10
"""Polls of each stream, where memory is measured."""
SPARE_FILES = 200
SETTLE_S = 0.1 if is_smoke() else 2.5
"""Longer than our node keeps what a quiet connection does not need."""
WARM_UP_POLLS = 100
READ_BYTES = 1 << 16
TICK_S = 0.001
"""As exact as epoll waits."""
NUMBER = re.compile(rb'"n":(\d+)')


class Talk(Protocol):
    """How to talk to a server."""

    def send(self, stream: str, body: bytes) -> bytes:
        """Encode a request that sends."""
        ...

    def poll(self, stream: str, waiter: int, answer: bytes) -> bytes:
        """Encode a request that waits for what follows an answer, or for anything after b""."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Who waits, and what is sent."""

    streams: int
    waiters: int
    """Of each stream."""
    rate: int
    messages: int
    is_broadcast: bool
    """Everyone gets every message; else each message goes to one."""

    @property
    def deliveries(self) -> int:
        return self.messages * (self.waiters if self.is_broadcast else 1)


def message(number: int) -> bytes:
    """Give a message that can be recognised."""
    start = b'{"n":%09d,"text":"' % (number + 100_000_000)
    return start + b"x" * (BODY_BYTES - len(start) - 2) + b'"}'


def number_of(answer: bytes | bytearray) -> int:
    """Give the number of the message in an answer."""
    found = NUMBER.search(answer)
    if found is None:
        raise RuntimeError(f"not a message: {bytes(answer[:400])!r}")
    return int(found[1]) - 100_000_000


class _Poll:
    """One who waits, polls again when it was answered."""

    __slots__ = ("_data", "_stream", "_talk", "_waiter", "wire")

    def __init__(self, wire: socket.socket, talk: Talk, stream: str, waiter: int) -> None:
        self.wire = wire
        self._talk = talk
        self._stream = stream
        self._waiter = waiter
        self._data = b""

    def ask(self, answer: bytes = b"") -> None:
        self.wire.sendall(self._talk.poll(self._stream, self._waiter, answer))

    def take(self) -> int | None:
        """Read; give the number of the message, if it came whole."""
        data = self._data + received(self.wire)
        if answer_bytes(data) is None:
            self._data = data
            return None
        self._data = b""
        number = number_of(data)
        self.ask(data)
        return number


def received(wire: socket.socket) -> bytes:
    """Read what has come."""
    data = wire.recv(READ_BYTES)
    if not data:
        raise RuntimeError("the server closed a connection")
    return data


class _Crowd:
    """All who wait, and a sender."""

    def __init__(self, port: int, talk: Talk, setting: Setting) -> None:
        self._talk = talk
        self._setting = setting
        self._names = names(f"poll-{time.monotonic_ns()}", setting.streams)
        self._epoll = select.epoll()
        self._senders = [connect(port) for _ in range(SENDERS)]
        self._polls: dict[int, _Poll] = {}
        for waiter in range(setting.waiters):
            for name in self._names:
                poll = _Poll(connect(port), talk, name, waiter)
                poll.ask()
                self._polls[poll.wire.fileno()] = poll
        for fd in (*self._polls, *(wire.fileno() for wire in self._senders)):
            self._epoll.register(fd, select.EPOLLIN)
        self._by_fd = {wire.fileno(): wire for wire in self._senders}
        self._sent = 0

    def close(self) -> None:
        self._epoll.close()
        for wire in (*self._senders, *(poll.wire for poll in self._polls.values())):
            wire.close()

    def run(self, *, messages: int) -> Seconds:
        """Send so many; give how long each took to each who got it."""
        each = self._setting.waiters if self._setting.is_broadcast else 1
        schedule = Schedule(rate=self._setting.rate, messages=messages)
        first = self._sent
        got: list[tuple[int, float]] = []
        heard = time.perf_counter()
        while len(got) < messages * each:
            for _ in range(schedule.due()):
                self._send()
            wait_s = schedule.wait_s() // TICK_S * TICK_S
            for fd, _ in self._epoll.poll(min(wait_s, SILENCE_S_MAX)):
                poll = self._polls.get(fd)
                if poll is None:
                    _check(received(self._by_fd[fd]))
                elif (number := poll.take()) is not None:
                    heard = time.perf_counter()
                    got.append((number - first, heard))
            if time.perf_counter() - heard > SILENCE_S_MAX:
                raise RuntimeError(f"{len(got)} of {messages * each} messages have come")
        numbers = np.array([number for number, _ in got])
        if (np.bincount(numbers, minlength=messages) != each).any():
            raise RuntimeError("a message came too often, or not to all")
        took: Seconds = np.array([moment for _, moment in got]) - schedule.meant[numbers]
        return took

    def _send(self) -> None:
        number = self._sent
        self._sent += 1
        name = self._names[number % len(self._names)]
        self._senders[number % SENDERS].sendall(self._talk.send(name, message(number)))


def _check(answers: bytes) -> None:
    if b"HTTP/1.1 4" in answers or b"HTTP/1.1 5" in answers:
        raise RuntimeError(f"a send failed: {answers[:400]!r}")


def match(watch: Stopwatch, port: int, talk: Talk, setting: Setting) -> None:
    """Let polls wait and send at a rate; tell how long it took from the send to the answer."""
    allow_files(setting.streams * setting.waiters + SENDERS)
    crowd = _Crowd(port, talk, setting)
    try:
        # Those who wait are objects that stay: nothing here is worth a collection amid a round.
        gc.freeze()
        gc.disable()
        crowd.run(messages=min(setting.messages, setting.rate))
        with watch.running(setting.deliveries):
            took = crowd.run(messages=setting.messages)
        watch.more["delivery_ms"] = percentiles(took)
    finally:
        crowd.close()


def hold(watch: Stopwatch, port: int, talk: Talk, *, polls: int) -> None:
    """Open connections, then let a poll wait on each; tell the server's memory at every step."""
    allow_files(polls + WARM_UP_POLLS)
    for wire in _held(port, talk, WARM_UP_POLLS):
        wire.close()
    time.sleep(SETTLE_S)
    before = rss_kb(watch.group)
    wires = [connect(port) for _ in range(polls)]
    time.sleep(SETTLE_S)
    idle = rss_kb(watch.group)
    with watch.running(polls):
        _ask(wires, talk)
        time.sleep(SETTLE_S)
    waiting = rss_kb(watch.group)
    if answered := _readable(wires):
        raise RuntimeError(f"{answered} of {polls} polls do not wait")
    watch.more |= {"before_kb": before, "idle_kb": idle, "waiting_kb": waiting}
    for wire in wires:
        wire.close()


def _held(port: int, talk: Talk, polls: int) -> list[socket.socket]:
    wires = [connect(port) for _ in range(polls)]
    _ask(wires, talk)
    return wires


def _ask(wires: list[socket.socket], talk: Talk) -> None:
    found = names(f"hold-{time.monotonic_ns()}", -(-len(wires) // STREAM_WAITERS))
    for number, wire in enumerate(wires):
        wire.sendall(talk.poll(found[number % len(found)], number // len(found), b""))


def _readable(wires: list[socket.socket]) -> int:
    with select.epoll() as epoll:
        for wire in wires:
            epoll.register(wire.fileno(), select.EPOLLIN)
        return len(epoll.poll(0, len(wires)))


def rss_kb(group: int) -> int:
    """Give what the largest process of a group has in memory."""
    sizes = [0]
    for pid in process_ids(group):
        status = Path(f"/proc/{pid}/status").read_text()
        sizes.append(int(status.partition("VmRSS:")[2].split()[0]))
    return max(sizes)


def files_allowed() -> int:
    """Give how many files this process, and those it starts, may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def allow_files(count: int) -> None:
    """Let this process, and those it starts, open so many files, and some more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
