"""What a subscription hands out: messages and batches, and the means to answer them.

Answering is cheap: it enqueues, and answers are merged to ranges and sent in bulk. An answer that
comes too late, because the lease ran out, moved to another member or ended with the connection,
changes nothing: the node delivers the message again, to some member. So `ack` never raises for
that; it says whether the lease still stood, as far as the client knows.
"""

from collections.abc import Generator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.client.consumer.rows import LoggedMessage, MessageRows
from waterclock.client.due import When, instant_ms, span_ms
from waterclock.client.encryption import Keys
from waterclock.model.clock import time_of
from waterclock.model.errors import BadInput
from waterclock.v1 import broker_pb2

ACK = broker_pb2.Answer.ACK
NACK = broker_pb2.Answer.NACK
REJECT = broker_pb2.Answer.REJECT
EXTEND = broker_pb2.Answer.EXTEND
GIVE_BACK = broker_pb2.Answer.GIVE_BACK
Kind: TypeAlias = "broker_pb2.Answer.Kind.ValueType"


class Answered:
    """What an answer returns. It is done already, so `await` is optional; true if it counted."""

    __slots__ = ("_did_count",)

    def __init__(self, did_count: bool) -> None:
        self._did_count = did_count

    def __repr__(self) -> str:
        return "<Answered>" if self._did_count else "<Answered too late>"

    def __bool__(self) -> bool:
        return self._did_count

    def __await__(self) -> Generator[None, None, bool]:
        return self._did_count
        yield


COUNTED = Answered(True)
TOO_LATE = Answered(False)


class Lease:
    """A partition as this member has it in one generation."""

    __slots__ = ("generation", "is_revoked", "is_void", "partition")

    def __init__(self, partition: int, generation: int) -> None:
        self.partition = partition
        self.generation = generation
        self.is_revoked = False
        """The node wants it back: nothing more comes, and it goes when all is answered."""
        self.is_void = False
        """Answers count no more."""

    def __repr__(self) -> str:
        void = ", void" if self.is_void else ""
        return f"<Lease of partition {self.partition}, generation {self.generation}{void}>"


class AckSink(Protocol):
    """Takes answers to the node; it may be called on any thread."""

    def ack(self, delivery: "Delivery", row: int) -> None:
        """Queue that a message is done."""
        ...

    def answer(
        self,
        delivery: "Delivery",
        kind: Kind,
        rows: Sequence[int],
        *,
        at_ms: int = 0,
        after_ms: int = 0,
    ) -> None:
        """Queue what became of some messages of a delivery.

        When is an instant of the node's clock, or a span from when the node hears of it.
        """
        ...

    def now_ms(self) -> int:
        """Return the time by the node's clock."""
        ...


class ProcessSpans(Protocol):
    """Makes messages and batches with a span around the work on each (`tracing.py`)."""

    def message(self, delivery: "Delivery", row: int) -> "ReceivedMessage": ...

    def batch(self, delivery: "Delivery", rows: range) -> "ReceivedBatch": ...


class Delivery(MessageRows):
    """Messages handed out together by the node."""

    __slots__ = (
        "acks", "answered", "attempt", "deadline_ms", "end_row", "ends_ms", "is_settled", "lease",
        "lease_ms", "next_row", "spans",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        response: broker_pb2.Delivery,
        lease: Lease,
        acks: AckSink,
        crypto_keys: Keys | None = None,
        spans: ProcessSpans | None = None,
    ) -> None:
        super().__init__(
            topic,
            response.partition,
            response.bounds,
            response.messages,
            crypto_keys=crypto_keys,
        )
        self.lease = lease
        self.acks = acks
        self.spans = spans
        self.attempt = response.attempt
        self.deadline_ms = response.deadline_ms
        """By the node's clock, for people: clocks are set, so nothing is decided by it."""
        self.lease_ms = max(response.lease_ms, 1)
        self.ends_ms = 0
        """The same by the client's monotonic clock; its session keeps this."""
        self.next_row = 0
        """Rows below were handed to the program."""
        self.end_row = self.count
        """Rows from here on were given back."""
        self.answered: set[int] = set()
        self.is_settled = False
        """All of it was answered."""

    def settle(self, rows: Sequence[int]) -> None:
        """Note that rows were answered for good."""
        if len(rows) < self.count:
            self.answered.update(rows)
        if len(rows) == self.count or len(self.answered) == self.count:
            self.is_settled = True

    def messages(self) -> "Iterator[ReceivedMessage]":
        """Hand out the messages that were not yet, while the lease stands."""
        lease = self.lease
        made = ReceivedMessage if self.spans is None else self.spans.message
        while self.next_row < self.end_row and not lease.is_void:
            row = self.next_row
            self.next_row = row + 1
            yield made(self, row)

    def take_rest(self) -> range:
        """Return the rows not handed out yet, which from now on are."""
        rows = range(self.next_row, self.end_row)
        self.next_row = self.end_row
        return rows

    def batch(self) -> "ReceivedBatch":
        """Hand out the rest as a whole."""
        made = ReceivedBatch if self.spans is None else self.spans.batch
        return made(self, self.take_rest())


class ReceivedMessage(LoggedMessage):
    """A message, and the means to answer it."""

    __slots__ = ("_delivery", "_is_answered", "deadline_ms")

    def __init__(self, delivery: Delivery, row: int) -> None:
        self._batch = self._delivery = delivery
        self._row = row
        self._is_answered = False
        self.deadline_ms = delivery.deadline_ms

    @property
    def attempt(self) -> int:
        """1 for the first delivery; counts failures only."""
        return self._delivery.attempt

    @property
    def deadline(self) -> datetime:
        """When the node takes it to have failed, unless it hears otherwise."""
        return time_of(self.deadline_ms)

    @property
    def is_held(self) -> bool:
        """No answer was given, and one would count."""
        return not self._is_answered and not self._delivery.lease.is_void

    def ack(self) -> Answered:
        """Done: never deliver it to this group again."""
        delivery = self._delivery
        if self._is_answered or delivery.lease.is_void:
            return TOO_LATE
        self._is_answered = True
        delivery.acks.ack(delivery, self._row)
        return COUNTED

    def nack(
        self, *, retry_in: timedelta | str | None = None, retry_at: When | None = None
    ) -> Answered:
        """Failed: deliver it again later, by the node's backoff or when you say."""
        at_ms, after_ms = _retry(self._delivery.acks, retry_in, retry_at)
        return self._final(NACK, at_ms=at_ms, after_ms=after_ms)

    def reject(self) -> Answered:
        """It can never succeed: to the dead letters with it."""
        return self._final(REJECT)

    def give_back(self) -> Answered:
        """Not tried: let anyone have it, at once, uncounted."""
        return self._final(GIVE_BACK)

    def extend(self, by: timedelta | str | None = None) -> Answered:
        """Still at it: hold it for so long from now, or for another lease."""
        delivery = self._delivery
        if not self.is_held:
            return TOO_LATE
        span = delivery.lease_ms if by is None else span_ms(by)
        self.deadline_ms = delivery.acks.now_ms() + span
        delivery.acks.answer(delivery, EXTEND, [self._row], after_ms=max(span, 1))
        return COUNTED

    def _final(self, kind: Kind, *, at_ms: int = 0, after_ms: int = 0) -> Answered:
        if not self.is_held:
            return TOO_LATE
        self._is_answered = True
        delivery = self._delivery
        delivery.acks.answer(delivery, kind, [self._row], at_ms=at_ms, after_ms=after_ms)
        return COUNTED


class ReceivedBatch:
    """Messages as one Arrow record batch: columns message_id, key, value, headers, due_ms."""

    __slots__ = ("_delivery", "_rows")

    def __init__(self, delivery: Delivery, rows: range) -> None:
        self._delivery = delivery
        self._rows = rows

    def __repr__(self) -> str:
        return f"<ReceivedBatch {len(self)} messages of {self.topic}/{self.partition}>"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> pa.RecordBatch:
        rows = self._delivery.decrypted_rows
        if len(self._rows) == rows.num_rows:
            return rows
        return rows.slice(self._rows.start, len(self._rows))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each row."""
        return np.asarray(self._delivery.offsets[self._rows.start : self._rows.stop], np.int64)

    @property
    def topic(self) -> str:
        """The topic the messages are in."""
        return self._delivery.topic

    @property
    def partition(self) -> int:
        """The partition the messages are in."""
        return self._delivery.lease.partition

    @property
    def attempt(self) -> int:
        """1 for the first delivery; counts failures only."""
        return self._delivery.attempt

    @property
    def deadline(self) -> datetime:
        """When the node takes them to have failed, unless it hears otherwise."""
        return time_of(self._delivery.deadline_ms)

    @property
    def is_held(self) -> bool:
        """Answers count."""
        return not self._delivery.lease.is_void

    def ack(self) -> Answered:
        """Done, all of them."""
        return self._answer(ACK)

    def nack(
        self, *, retry_in: timedelta | str | None = None, retry_at: When | None = None
    ) -> Answered:
        """Failed, all of them: deliver them again later, by the node's backoff or when you say."""
        at_ms, after_ms = _retry(self._delivery.acks, retry_in, retry_at)
        return self._answer(NACK, at_ms=at_ms, after_ms=after_ms)

    def reject(self) -> Answered:
        """They can never succeed: to the dead letters with them."""
        return self._answer(REJECT)

    def extend(self, by: timedelta | str | None = None) -> Answered:
        """Still at it: hold them for so long from now, or for another lease."""
        delivery = self._delivery
        span = delivery.lease_ms if by is None else span_ms(by)
        return self._answer(EXTEND, after_ms=max(span, 1))

    def _answer(self, kind: Kind, *, at_ms: int = 0, after_ms: int = 0) -> Answered:
        delivery = self._delivery
        if delivery.lease.is_void:
            return TOO_LATE
        delivery.acks.answer(delivery, kind, self._rows, at_ms=at_ms, after_ms=after_ms)
        return COUNTED


def _retry(
    acks: AckSink, retry_in: timedelta | str | None, retry_at: When | None
) -> tuple[int, int]:
    """Return when to try again, as an instant or as a span; neither if the node is to say."""
    if retry_in is not None and retry_at is not None:
        raise BadInput("nack: give either retry_in or retry_at")
    if retry_in is not None:
        return 0, max(span_ms(retry_in), 1)
    if retry_at is not None:
        return instant_ms(retry_at, acks.now_ms(), field="retry_at"), 0
    return 0, 0
