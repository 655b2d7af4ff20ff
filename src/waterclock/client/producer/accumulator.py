"""When a batch is sent: one accumulator for each topic, and partition if one was named.

The rule is Nagle's (RFC 896): a full batch is sent at once. One that is not full waits while
another is in flight, whose answer will come soon; until then more messages may join. With nothing
in flight it is sent at once too, so a lone message never waits; none waits longer than `linger`.

Order: messages of one key leave in the order they came. Batches in flight together could overtake
each other, on the way or by a retry, so two of them never share a key: a batch that shares one with
a batch in flight waits for it, and everything behind waits too. A batch being retried is in flight.

Pure: the producer says what came and what was answered, and asks what to send.
"""

from collections import deque
from typing import Generic, TypeVar

from waterclock.client.producer.columns import Columns

Batch = TypeVar("Batch", bound=Columns)


class Accumulator(Generic[Batch]):
    """The batches of one destination: one open, some full, some in flight."""

    __slots__ = ("_full", "_in_flight", "_in_flight_max", "open", "opened_ms")

    def __init__(self, *, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._full: deque[Batch] = deque()
        self._in_flight: dict[Batch, frozenset[bytes]] = {}
        self.open: Batch | None = None
        self.opened_ms = 0.0

    def __repr__(self) -> str:
        waiting = 0 if self.open is None else len(self.open)
        flying = len(self._in_flight)
        return f"<Accumulator {waiting} messages open, {len(self._full)} full, {flying} in flight>"

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight: what is open may go at once."""
        return not self._in_flight

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return self.open is None and not self._full and not self._in_flight

    def begin(self, batch: Batch, now_ms: float) -> None:
        """Open a new batch, behind those there are."""
        assert self.open is None
        self.open = batch
        self.opened_ms = now_ms

    def fill(self) -> None:
        """Close the open batch: it is full."""
        assert self.open is not None
        self._full.append(self.open)
        self.open = None

    def next_batch(self, now_ms: float, *, linger_ms: float) -> Batch | None:
        """Return a batch to send now, if any; it is in flight until `answered`. Ask again."""
        if len(self._in_flight) >= self._in_flight_max:
            return None
        if self._full:
            batch = self._full[0]
        elif self.open is not None and (self.is_idle or self.opened_ms + linger_ms <= now_ms):
            batch = self.open
        else:
            return None
        keys = _keys(batch)
        if not all(keys.isdisjoint(others) for others in self._in_flight.values()):
            return None
        if self._full:
            self._full.popleft()
        else:
            self.open = None
        self._in_flight[batch] = keys
        return batch

    def answered(self, batch: Batch) -> None:
        """Note that a batch is through, well or not. Ask for the next."""
        del self._in_flight[batch]

    def waiting(self) -> list[Batch]:
        """Take out what was not sent."""
        batches = [*self._full, *([] if self.open is None else [self.open])]
        self._full.clear()
        self.open = None
        return batches

    def check_invariants(self) -> None:
        """Fail if batches in flight share a key, or are too many."""
        assert len(self._in_flight) <= self._in_flight_max
        flying = list(self._in_flight.values())
        for at, keys in enumerate(flying):
            assert all(keys.isdisjoint(others) for others in flying[:at])


def _keys(batch: Columns) -> frozenset[bytes]:
    """Return the keys of a batch; that some messages have none binds nothing."""
    return frozenset(key for key in set(batch.keys) if key is not None)
