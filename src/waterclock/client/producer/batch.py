"""A batch on its way out, and which calls wait for which of its rows.

A call of `publish` waits for one row with a future of its own; a call of `publish_many` waits for a
range of rows, perhaps of several batches, with one future for all.
"""

import asyncio
from collections.abc import Sequence
from itertools import repeat

from waterclock.client.producer.columns import Columns
from waterclock.client.results import Receipt, SomeFailed
from waterclock.v1 import broker_pb2

Outcome = Receipt | Exception
"""An exception that is not ours is a bug of this client; it goes to the caller like any other."""


class ManyCall:
    """One call of `publish_many`: collects its answers."""

    __slots__ = ("_left", "_outcomes", "future")

    def __init__(self, count: int, future: asyncio.Future[list[Receipt]]) -> None:
        self._outcomes: list[Outcome | None] = [None] * count
        self._left = count
        self.future = future

    def answer(self, at: int, outcomes: Sequence[Outcome]) -> None:
        """Take the answers for messages from `at` on."""
        self._outcomes[at : at + len(outcomes)] = outcomes
        self._left -= len(outcomes)
        if self._left or self.future.done():
            return
        receipts = [each for each in self._outcomes if isinstance(each, Receipt)]
        if len(receipts) == len(self._outcomes):
            self.future.set_result(receipts)
            return
        failures = [each for each in self._outcomes if isinstance(each, Exception)]
        # One reason for all is said as what it is.
        if len(failures) == len(self._outcomes) and all(each is failures[0] for each in failures):
            self.future.set_exception(failures[0])
        else:
            self.future.set_exception(SomeFailed([e for e in self._outcomes if e is not None]))


class ProducerBatch(Columns):
    """A batch and its waiters."""

    __slots__ = ("ends_ms", "groups", "singles", "withdrawn")

    def __init__(self, ends_ms: float) -> None:
        super().__init__()
        self.ends_ms = ends_ms
        """Tried until then."""
        self.singles: list[tuple[int, asyncio.Future[Receipt]]] = []
        self.groups: list[tuple[int, int, ManyCall, int]] = []
        """First row, end row, the call, and which message of the call the first row is."""
        self.withdrawn: set[int] = set()
        """Rows whose caller was cancelled before they were sent."""

    def withdraw(self) -> None:
        """Leave out the rows whose callers were cancelled."""
        if not self.withdrawn:
            return
        gone = sorted(self.withdrawn)
        self.without(self.withdrawn)
        shift = [sum(row < at for row in gone) for at in range(len(self.values) + len(gone) + 1)]
        self.singles = [
            (row - shift[row], future) for row, future in self.singles if row not in self.withdrawn
        ]
        self.groups = [
            (start - shift[start], end - shift[end], call, at)
            for start, end, call, at in self.groups
        ]
        self.withdrawn = set()

    def answer(self, outcomes: Sequence[Outcome]) -> None:
        """Answer all calls that wait."""
        for row, future in self.singles:
            if future.done():
                continue
            outcome = outcomes[row]
            if isinstance(outcome, Receipt):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
        for start, end, call, at in self.groups:
            call.answer(at, outcomes[start:end])


def receipts_of(
    topic: str, ids: Sequence[bytes], answer: broker_pb2.PublishBatchResponse
) -> list[Receipt]:
    """Return a receipt for each message of a batch that was answered."""
    count = len(ids)
    partitions = answer.partitions or repeat(answer.partition, count)
    offsets = answer.offsets or range(answer.first_offset, answer.first_offset + count)
    if answer.duplicates:
        repeats = set(answer.duplicates)
        is_new = [row not in repeats for row in range(count)]
        receipts = list(map(Receipt, repeat(topic), partitions, offsets, ids, is_new))
    else:
        receipts = list(map(Receipt, repeat(topic), partitions, offsets, ids, repeat(True)))
    if answer.made_partitions:
        receipts[0].made_partitions = answer.made_partitions
    return receipts
