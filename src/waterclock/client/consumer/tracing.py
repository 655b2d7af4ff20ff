"""The span around the work on a message, in a program that uses OpenTelemetry.

    process orders    CONSUMER    from when the program gets it until it answers, or lets go of it

Nothing calls a handler here: the program takes messages out of a loop. So a span begins as its
message is handed out, under the context that the message carries, and is the current one in the
loop's body, and in tasks made there. It ends with the answer. A message that is never answered ends
its span when the program has no reference to it any more, which in a loop is the next turn.
"""

from waterclock.client.consumer.delivery import (
    ACK,
    EXTEND,
    GIVE_BACK,
    NACK,
    REJECT,
    Answered,
    Delivery,
    Kind,
    ReceivedBatch,
    ReceivedMessage,
)
from waterclock.runtime.tracing import LINKS_MAX, Span, Tracer, id_text, messaging

_NAMES: dict[Kind, str] = {ACK: "ack", NACK: "nack", REJECT: "reject", GIVE_BACK: "give_back"}
_FAILURES = (NACK, REJECT)


class Processing:
    """One span, from the beginning to the end."""

    __slots__ = ("_leave", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span: Span | None = span
        self._leave = tracer.enter(span)

    def __del__(self) -> None:
        self._end()

    def answered(self, kind: Kind) -> None:
        """End it with an answer; later ones change nothing."""
        span = self._span
        if span is None:
            return
        name = _NAMES[kind]
        span.set_attribute("waterclock.answer", name)
        if kind in _FAILURES:
            self._tracer.fail(span, name)
        self._end()

    def _end(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            self._leave()
            span.end()


class TracedMessage(ReceivedMessage):
    """A message whose answer ends a span."""

    __slots__ = ("_processing",)

    def __init__(self, delivery: Delivery, row: int, processing: Processing) -> None:
        super().__init__(delivery, row)
        self._processing = processing

    def ack(self) -> Answered:
        """Done: never deliver it to this group again."""
        answered = super().ack()
        self._processing.answered(ACK)
        return answered

    def _final(self, kind: Kind, *, at_ms: int = 0, after_ms: int = 0) -> Answered:
        answered = super()._final(kind, at_ms=at_ms, after_ms=after_ms)
        self._processing.answered(kind)
        return answered


class TracedBatch(ReceivedBatch):
    """A batch whose answer ends a span."""

    __slots__ = ("_processing",)

    def __init__(self, delivery: Delivery, rows: range, processing: Processing) -> None:
        super().__init__(delivery, rows)
        self._processing = processing

    def _answer(self, kind: Kind, *, at_ms: int = 0, after_ms: int = 0) -> Answered:
        answered = super()._answer(kind, at_ms=at_ms, after_ms=after_ms)
        if kind != EXTEND:
            self._processing.answered(kind)
        return answered


class MessageSpans:
    """Makes the spans of one member's messages."""

    def __init__(self, tracer: Tracer, group: str) -> None:
        self._tracer = tracer
        self._group = group

    def __repr__(self) -> str:
        return f"<MessageSpans of {self._group} by {self._tracer!r}>"

    def message(self, delivery: Delivery, row: int) -> ReceivedMessage:
        """Hand out a message in a span."""
        span = self._begin(delivery, range(row, row + 1), count=None)
        span.set_attribute("messaging.message.id", id_text(delivery.ids[row]))
        return TracedMessage(delivery, row, Processing(self._tracer, span))

    def batch(self, delivery: Delivery, rows: range) -> ReceivedBatch:
        """Hand out a batch in a span."""
        span = self._begin(delivery, rows, count=len(rows))
        return TracedBatch(delivery, rows, Processing(self._tracer, span))

    def _begin(self, delivery: Delivery, rows: range, *, count: int | None) -> Span:
        headers = delivery.headers
        contexts = self._tracer.contexts_of(headers[row] for row in rows[: 4 * LINKS_MAX])
        attributes = messaging("process", delivery.topic, count=count) | {
            "messaging.consumer.group.name": self._group,
            "messaging.destination.partition.id": str(delivery.partition),
            "waterclock.attempt": delivery.attempt,
        }
        if rows:
            attributes["waterclock.offset"] = delivery.offsets[rows.start]
        return self._tracer.begin(
            f"process {delivery.topic}", "CONSUMER", contexts, attributes=attributes
        )
