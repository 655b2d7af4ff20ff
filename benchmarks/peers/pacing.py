"""Messages sent at a steady rate, each timed from the moment it was meant to be sent.

A client that waits for answers before it sends on would hide every stall behind the next message
(coordinated omission), so nothing waits here, and a message that leaves late counts as late.
"""

import select
import socket
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.client import Stopwatch
from benchmarks.peers.wire import SILENCE_S_MAX, Feed, received

Seconds = npt.NDArray[np.float64]
LEAD_S = 0.1
"""Time between the beginning and the first message."""
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}


@dataclass(frozen=True, slots=True)
class Times:
    """When each message was to be sent, was acknowledged, and was delivered."""

    meant: Seconds
    acked: Seconds
    delivered: Seconds


class Schedule:
    """When each message is to be sent."""

    def __init__(self, *, rate: int, messages: int) -> None:
        self.rate = rate
        self.meant: Seconds = time.perf_counter() + LEAD_S + np.arange(messages) / rate
        self._sent = 0

    def due(self) -> int:
        """Give how many messages are to be sent now, and count them as sent."""
        before = self._sent
        self._sent = int(np.searchsorted(self.meant, time.perf_counter(), side="right"))
        return self._sent - before

    def wait_s(self) -> float:
        """Give the time until the next is due; long, if all are sent."""
        if self._sent == len(self.meant):
            return SILENCE_S_MAX
        return max(0.0, float(self.meant[self._sent]) - time.perf_counter())


class Conversation:
    """A publisher and a subscriber, a socket each; both are answered in order."""

    def __init__(
        self, publisher: socket.socket, acks: Feed, subscriber: socket.socket, deliveries: Feed
    ) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._feeds = {publisher: acks, subscriber: deliveries}

    def run(self, message: bytes, *, rate: int, messages: int) -> Times:
        """Send one message again and again."""
        seen = {wire: np.zeros(messages) for wire in self._feeds}
        counts = dict.fromkeys(self._feeds, 0)
        schedule = Schedule(rate=rate, messages=messages)
        while min(counts.values()) < messages:
            if due := schedule.due():
                self._publisher.sendall(message * due)
            readable, _, _ = select.select(list(self._feeds), [], [], schedule.wait_s())
            for wire in readable:
                count = self._feeds[wire](received(wire))
                start = counts[wire]
                seen[wire][start : start + count] = time.perf_counter()
                counts[wire] += count
        return Times(schedule.meant, seen[self._publisher], seen[self._subscriber])


def tell(watch: Stopwatch, times: Times) -> None:
    """Put the percentiles into what this client tells, in milliseconds."""
    watch.more["ack_ms"] = percentiles(times.acked - times.meant)
    watch.more["delivery_ms"] = percentiles(times.delivered - times.meant)


def percentiles(seconds: Seconds) -> dict[str, float]:
    """Give the percentiles of a latency in milliseconds."""
    values: Any = np.percentile(seconds * 1e3, list(PERCENTILES.values()))
    return dict(zip(PERCENTILES, map(float, values), strict=True))
