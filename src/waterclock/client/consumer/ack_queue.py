"""Answers on their way to the node: queued one by one, sent as ranges.

An ack costs an append to a queue; when it is time, all that is queued becomes the fewest half-open
ranges of each partition and generation. Appending to and taking from the queue are atomic, and the
flag goes up after an append and down before the taking, so other threads may answer too and nothing
is left behind.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from waterclock.client.consumer.delivery import ACK, EXTEND, Delivery, Kind, Lease
from waterclock.v1 import broker_pb2

Range = tuple[int, int]
_Answer = tuple[Delivery, Kind, Sequence[int], int, int]


class AckQueue:
    """The answers of a member on one stream."""

    __slots__ = (
        "_acks",
        "_answers",
        "_is_flushing",
        "_is_woken",
        "_now_ms",
        "_wake",
        "urgent_count",
    )

    def __init__(self, wake: Callable[[bool], None], now_ms: Callable[[], int]) -> None:
        self._wake = wake
        """Called when there is something to send; with True if it should go at once."""
        self._now_ms = now_ms
        self.urgent_count = 256
        """So many acks are sent without waiting for more."""
        self._acks: deque[tuple[Delivery, int]] = deque()
        self._answers: deque[_Answer] = deque()
        self._is_woken = False
        self._is_flushing = False

    def __repr__(self) -> str:
        return f"<AckQueue {len(self._acks)} acks, {len(self._answers)} other answers>"

    def __bool__(self) -> bool:
        return bool(self._acks or self._answers)

    def ack(self, delivery: Delivery, row: int) -> None:
        """Queue that a message is done."""
        acks = self._acks
        acks.append((delivery, row))
        if not self._is_woken:
            self._is_woken = True
            self._wake(False)
        elif len(acks) >= self.urgent_count and not self._is_flushing:
            self._is_flushing = True
            self._wake(True)

    def answer(
        self,
        delivery: Delivery,
        kind: Kind,
        rows: Sequence[int],
        *,
        at_ms: int = 0,
        after_ms: int = 0,
    ) -> None:
        """Queue what became of some messages of a delivery."""
        self._answers.append((delivery, kind, rows, at_ms, after_ms))
        if not self._is_woken:
            self._is_woken = True
            self._wake(len(rows) >= self.urgent_count)

    def now_ms(self) -> int:
        """Return the time by the node's clock."""
        return self._now_ms()

    def flush(self) -> None:
        """Have what is queued sent at once."""
        if self._is_woken and not self._is_flushing:
            self._is_flushing = True
            self._wake(True)

    def drain(self, touched: set[Delivery]) -> list[broker_pb2.Answer]:
        """Take what is queued, and note the deliveries it is about.

        What concerns void leases is left out.
        """
        self._is_woken = self._is_flushing = False
        ranges_of: dict[tuple[Lease, Kind, int, int], list[Range]] = {}
        # Extensions first: an ack or nack of the same message ends it.
        answers = [self._answers.popleft() for _ in range(len(self._answers))]
        answers.sort(key=_is_final)
        answers += [(delivery, ACK, rows, 0, 0) for delivery, rows in _by_delivery(self._acks)]
        for delivery, kind, rows, at_ms, after_ms in answers:
            if delivery.lease.is_void:
                continue
            if kind != EXTEND:
                delivery.settle(rows)
                touched.add(delivery)
            key = delivery.lease, kind, at_ms, after_ms
            ranges_of.setdefault(key, []).extend(_ranges(delivery, rows))
        return [
            broker_pb2.Answer(
                partition=lease.partition,
                generation=lease.generation,
                bounds=bounds_of(ranges),
                kind=kind,
                at_ms=at_ms,
                after_ms=after_ms,
            )
            for (lease, kind, at_ms, after_ms), ranges in ranges_of.items()
        ]


def _is_final(answer: _Answer) -> bool:
    return answer[1] != EXTEND


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
