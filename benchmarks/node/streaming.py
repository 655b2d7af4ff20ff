"""Clients of in-memory streams in our node, by HTTP."""

import time

from benchmarks.client import Stopwatch
from benchmarks.load import BODY, get, names, play, post, send_all
from benchmarks.polling import Setting, hold, match


def send_to(name: str, body: bytes = BODY, *, size: int | None = None) -> bytes:
    """Encode a send."""
    extra = b"" if size is None else b',"inMemoryStreamSize":%d' % size
    return post("/streams/send", b'{"streamId":"%b","message":%b%b}' % (name.encode(), body, extra))


def receive_from(name: str) -> bytes:
    """Encode a receive."""
    return get(f"/streams/receive?streamId={name}")


def send(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Send."""
    play(watch, port, [send_to(name) for name in names("send", streams)], seconds=seconds)


def receive(watch: Stopwatch, port: int, *, streams: int, seconds: int, messages: int) -> None:
    """Receive messages that are there; each is taken."""
    found = names(f"receive-{time.monotonic_ns()}", streams)
    each = messages // streams
    send_all(port, [send_to(name, size=each) for name in found] * each)
    play(watch, port, [receive_from(name) for name in found], seconds=seconds)
    forget(port, found)
    if watch.messages >= messages:
        raise RuntimeError(f"{messages} messages were too few for {seconds} s")


def send_receive(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Send to each stream in turn and receive from it."""
    found = names(f"both-{streams}", streams)
    both = [request for name in found for request in (send_to(name), receive_from(name))]
    play(watch, port, both, seconds=seconds)


def poll_send(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Wait for the next message of each stream in turn, and send it."""
    found = names("next", streams)
    both = [request for name in found for request in (receive_from(name), send_to(name))]
    play(watch, port, both, seconds=seconds)


def forget(port: int, found: list[str]) -> None:
    """Delete streams."""
    send_all(
        port, [f"DELETE /streams/{n} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for n in found]
    )


# Polls that wait


class Talk:
    """How receivers and senders talk to our node."""

    def __init__(self, *, is_broadcast: bool) -> None:
        self._is_broadcast = is_broadcast

    def send(self, stream: str, body: bytes) -> bytes:
        """Encode a send."""
        return send_to(stream, body)

    def poll(self, stream: str, waiter: int, answer: bytes) -> bytes:
        """Encode a receive: the node knows where a consumer is."""
        consumer = f"&consumerId=w{waiter}" if self._is_broadcast else ""
        return get(f"/streams/receive?streamId={stream}&timeout=300s{consumer}")


def matching(watch: Stopwatch, port: int, **setting: int) -> None:
    """Send at a rate to streams where some compete for each message."""
    match(watch, port, Talk(is_broadcast=False), Setting(**setting, is_broadcast=False))


def broadcast(watch: Stopwatch, port: int, **setting: int) -> None:
    """Send at a rate to streams where all who wait get each message."""
    match(watch, port, Talk(is_broadcast=True), Setting(**setting, is_broadcast=True))


def waiters(watch: Stopwatch, port: int, *, polls: int) -> None:
    """Let polls wait; tell what the memory grew by."""
    hold(watch, port, Talk(is_broadcast=False), polls=polls)
