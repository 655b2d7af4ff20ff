"""Answers on their way to the node: gathered one by one, sent as ranges.

An ack costs an append to a queue; when it is time, all that gathered becomes the fewest half-open
ranges of each partition and generation. Appending to and taking from the queue are atomic, and the
flag goes up after an append and down before the taking, so other threads may answer too and nothing
is left behind.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from waterclock.client.consumer.delivery import ACK, EXTEND, Delivery, Kind, Lease
from waterclock.v1 import broker_pb2

Range = tuple[int, int]
_Word = tuple[Delivery, Kind, Sequence[int], int, int]


class AckQueue:
    """What a member has to say on one stream."""

    __slots__ = ("_acks", "_is_awake", "_is_hurried", "_now_ms", "_wake", "_words", "urgent_count")

    def __init__(self, wake: Callable[[bool], None], now_ms: Callable[[], int]) -> None:
        self._wake = wake
        """Called when there is something to send; with True if it should go at once."""
        self._now_ms = now_ms
        self.urgent_count = 256
        """So many acks are sent without waiting for more."""
        self._acks: deque[tuple[Delivery, int]] = deque()
        self._words: deque[_Word] = deque()
        self._is_awake = False
        self._is_hurried = False

    def __repr__(self) -> str:
        return f"<AckQueue {len(self._acks)} acks, {len(self._words)} other words>"

    def ack(self, delivery: Delivery, row: int) -> None:
        """Say that a message is done."""
        acks = self._acks
        acks.append((delivery, row))
        if not self._is_awake:
            self._is_awake = True
            self._wake(False)
        elif len(acks) >= self.urgent_count and not self._is_hurried:
            self._is_hurried = True
            self._wake(True)

    def say(
        self,
        delivery: Delivery,
        kind: Kind,
        rows: Sequence[int],
        *,
        at_ms: int = 0,
        after_ms: int = 0,
    ) -> None:
        """Say something about some messages of a delivery."""
        self._words.append((delivery, kind, rows, at_ms, after_ms))
        if not self._is_awake:
            self._is_awake = True
            self._wake(len(rows) >= self.urgent_count)

    def now_ms(self) -> int:
        """Return the time by the node's clock."""
        return self._now_ms()

    def hurry(self) -> None:
        """Have what there is sent at once."""
        if self._is_awake and not self._is_hurried:
            self._is_hurried = True
            self._wake(True)

    def drain(self, touched: set[Delivery]) -> list[broker_pb2.Answer]:
        """Take what there is to say, and note the deliveries it is about.

        What concerns void leases is left out.
        """
        self._is_awake = self._is_hurried = False
        said: dict[tuple[Lease, Kind, int, int], list[Range]] = {}
        # First what may be overtaken by what ends a message.
        words = [self._words.popleft() for _ in range(len(self._words))]
        words.sort(key=_is_final)
        words += [(delivery, ACK, rows, 0, 0) for delivery, rows in _by_delivery(self._acks)]
        for delivery, kind, rows, at_ms, after_ms in words:
            if delivery.lease.is_void:
                continue
            if kind != EXTEND:
                delivery.settle(rows)
                touched.add(delivery)
            word = delivery.lease, kind, at_ms, after_ms
            said.setdefault(word, []).extend(_ranges(delivery, rows))
        return [
            broker_pb2.Answer(
                partition=lease.partition,
                generation=lease.generation,
                bounds=bounds_of(ranges),
                kind=kind,
                at_ms=at_ms,
                after_ms=after_ms,
            )
            for (lease, kind, at_ms, after_ms), ranges in said.items()
        ]


def _is_final(word: _Word) -> bool:
    return word[1] != EXTEND


def _by_delivery(acks: deque[tuple[Delivery, int]]) -> Iterable[tuple[Delivery, list[int]]]:
    found: dict[Delivery, list[int]] = {}
    for _ in range(len(acks)):
        delivery, row = acks.popleft()
        rows = found.get(delivery)
        if rows is None:
            rows = found[delivery] = []
        rows.append(row)
    return found.items()


def _ranges(delivery: Delivery, rows: Sequence[int]) -> list[Range]:
    """Return the offsets of some rows as half-open ranges, in ascending order."""
    offsets = delivery.offsets
    ordered = rows if isinstance(rows, range) else sorted(set(rows))
    if not ordered:
        return []
    start, last = offsets[ordered[0]], offsets[ordered[-1]]
    if last - start + 1 == len(ordered) == ordered[-1] - ordered[0] + 1:
        return [(start, last + 1)]
    return [(offsets[row], offsets[row] + 1) for row in ordered]


def bounds_of(ranges: list[Range]) -> list[int]:
    """Return the fewest half-open ranges that hold these, as start, end, start, end ..."""
    ranges.sort()
    bounds: list[int] = []
    end = -1
    for start, stop in ranges:
        if start > end:
            bounds += (start, stop)
            end = stop
        elif stop > end:
            bounds[-1] = end = stop
    return bounds
