"""Subscribe: one member's streaming_call over one gRPC stream.

Two loops share a session. One reads what the member says; the other takes the next thing that goes
out, hands it to gRPC and waits until gRPC has taken it. So HTTP/2's flow control is the brake: for
a member that does not read, nothing more is read from the log.

    first request    `open`, and never again
    leave            the member goes in good order: the call ends with OK, once what it rejected is
                     in the dead letters, or cannot be written there for too long
    half-close, or   the connection broke: what the member held goes to others
    a lost client
    the node stops   nothing new is handed out; the member may finish and ack what it holds, as long
                     as the drain lasts, then the call ends with UNAVAILABLE
"""

from collections.abc import Iterator
from typing import assert_never

from waterclock.model.errors import (
    BadInput,
    LimitExceeded,
    Stopping,
    WaterclockError,
)
from waterclock.node.groups.outbound import Assigned, Delivery, Lost, Outbound, Refused, Revoked
from waterclock.node.groups.positions import Start
from waterclock.node.groups.session import AnswerKind, Ending, Session
from waterclock.node.node import Node
from waterclock.node.task_groups import task_group
from waterclock.server.calls import Calls, Stream
from waterclock.server.grpc.fields import check_not_negative, member_of, ranges_of
from waterclock.server.grpc.wire import nested, times_of
from waterclock.server.rows import in_slices, rows_to_proto
from waterclock.server.statuses import session_error
from waterclock.v1 import broker_pb2 as pb

ANSWERS_MAX = 10_000
BOUNDS_MAX = 200_000
"""Of one request: it is dealt with in one go, and everyone else waits for it."""

Event = pb.SubscribeResponse


class Subscriptions:
    """Serves `Subscribe`."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls

    async def subscribe(self, _: object, stream: Stream) -> None:
        """Serve one member until it leaves or is lost."""
        first = await stream.read()
        if first is None or not first.HasField("open"):
            raise BadInput("open: the first request must have it")
        opening: pb.SubscribeRequest.Open = first.open
        check_not_negative(start_ms=opening.start_ms)
        is_arrow = member_of(pb.Format, "format", opening.format) == pb.FORMAT_ARROW
        session = await self._node.groups.open_session(
            opening.topic,
            opening.group,
            member=opening.member,
            start=Start(member_of(pb.Start, "start", opening.start)),
            start_ms=opening.start_ms,
            credit=_credit(first),
        )
        subscription = Subscription(session, opening.topic, is_arrow=is_arrow)
        stream.serve_by(subscription)
        self._calls.streaming_calls.add(subscription)
        try:
            if self._calls.is_stopping:
                subscription.stop()
            await subscription.run(first, stream)
            # A member that has left may ask for the dead letters and the lag next.
            async with self._calls.waiting():
                await session.settled()
        finally:
            self._calls.streaming_calls.discard(subscription)
            session.close(clean=False)


class Subscription:
    """One member's stream."""

    def __init__(self, session: Session, topic: str, *, is_arrow: bool) -> None:
        self.is_stopping = False
        self._session = session
        self._topic = topic
        self._is_arrow = is_arrow

    def __repr__(self) -> str:
        return f"<Subscription {self._session!r}>"

    async def run(self, first: pb.SubscribeRequest, stream: Stream) -> None:
        """Talk until the session is over; raises why, unless the member left."""
        session = self._session
        async with task_group() as tasks:
            await stream.write(_opened(session))
            self._hear(first)
            listening = tasks.create_task(self._listen(stream))
            async for item in session:
                for event in self._events(item):
                    await stream.write(event)
            listening.cancel()
        assert session.ending is not None
        problem = self._problem(session.ending)
        if problem is not None:
            raise problem

    def _problem(self, ending: Ending) -> WaterclockError | None:
        if self.is_stopping:
            return Stopping(Ending.STOPPING.value)
        if ending is Ending.LEFT:
            return None
        if ending is Ending.BROKEN:
            return BadInput("leave: the requests ended without it")
        return session_error(ending, self._topic)

    # When the node stops

    def stop(self) -> None:
        """Hand out nothing new; end once the member has answered for all it holds."""
        self.is_stopping = True
        self._session.set_credit(0, 0)
        self._end_if_drained()

    def end(self) -> None:
        """End, whatever the member holds."""
        self._session.close(clean=True)

    def _end_if_drained(self) -> None:
        if self.is_stopping and not self._session.credit.held_messages:
            self.end()

    # What the member says

    async def _listen(self, stream: Stream) -> None:
        session = self._session
        while session.ending is None:
            request = await stream.read()
            if request is None:
                session.close(clean=False)
                return
            if request.HasField("open"):
                raise BadInput("open: only the first request may have it")
            self._hear(request)
            self._end_if_drained()

    def _hear(self, request: pb.SubscribeRequest) -> None:
        session = self._session
        session.heartbeat()
        answers = request.answers
        if answers:
            _check_sizes(request)
            for answer in answers:
                kind = AnswerKind(member_of(pb.Answer.Kind, "kind", answer.kind))
                check_not_negative(at_ms=answer.at_ms, after_ms=answer.after_ms)
                session.answer(
                    kind,
                    answer.partition,
                    answer.generation,
                    ranges_of(answer.bounds),
                    answer.at_ms,
                    after_ms=answer.after_ms,
                )
        if request.HasField("credit") and not self.is_stopping:
            credit = request.credit
            check_not_negative(messages=credit.messages, bytes=credit.bytes)
            session.set_credit(credit.messages, credit.bytes)
        if request.leave:
            session.leave()

    # What goes out

    def _events(self, item: Outbound) -> Iterator[bytes]:
        if isinstance(item, Delivery):
            yield from self._deliveries(item)
        else:
            yield _word(item).SerializeToString()

    def _deliveries(self, delivery: Delivery) -> Iterator[bytes]:
        if self._is_arrow:
            head = _delivery_head(delivery, delivery.messages.bounds)
            yield nested(
                [
                    Event.DELIVERY_FIELD_NUMBER,
                    pb.Delivery.MESSAGES_FIELD_NUMBER,
                    pb.Messages.ARROW_FIELD_NUMBER,
                ],
                [b"", head.SerializeToString(), times_of(delivery.messages)],
                [delivery.messages.arrow],
            )
            return
        for some in in_slices(delivery.messages):
            part = _delivery_head(delivery, some.bounds)
            part.messages.CopyFrom(rows_to_proto(some))
            yield Event(delivery=part).SerializeToString()


def _check_sizes(request: pb.SubscribeRequest) -> None:
    answers = request.answers
    if len(answers) > ANSWERS_MAX:
        raise LimitExceeded("answers of a request", ANSWERS_MAX, got=len(answers))
    bounds = sum(len(answer.bounds) for answer in answers)
    if bounds > BOUNDS_MAX:
        raise LimitExceeded("bounds of a request", BOUNDS_MAX, got=bounds)


def _credit(request: pb.SubscribeRequest) -> tuple[int, int] | None:
    if not request.HasField("credit"):
        return None
    credit = request.credit
    check_not_negative(messages=credit.messages, bytes=credit.bytes)
    return credit.messages, credit.bytes


def _opened(session: Session) -> bytes:
    credit = pb.Credit(messages=session.credit.messages_max, bytes=session.credit.bytes_max)
    opened = Event.Opened(
        member=session.member,
        heartbeat_ms=session.heartbeat_ms,
        credit=credit,
        made_partitions=session.made_partitions,
    )
    return Event(opened=opened).SerializeToString()


def _delivery_head(delivery: Delivery, bounds: list[int]) -> pb.Delivery:
    return pb.Delivery(
        partition=delivery.partition,
        generation=delivery.generation,
        attempt=delivery.attempt,
        deadline_ms=delivery.deadline_ms,
        lease_ms=delivery.lease_ms,
        bounds=bounds,
    )


def _word(item: Assigned | Revoked | Lost | Refused) -> pb.SubscribeResponse:
    match item:
        case Assigned(partition, generation, committed):
            assigned = Event.Assigned(
                partition=partition, generation=generation, committed=committed
            )
            return Event(assigned=assigned)
        case Revoked(partition, generation, deadline_ms, is_cancelled):
            revoked = Event.Revoked(
                partition=partition,
                generation=generation,
                deadline_ms=deadline_ms,
                is_cancelled=is_cancelled,
            )
            return Event(revoked=revoked)
        case Lost(partition, generation):
            return Event(lost=Event.Lost(partition=partition, generation=generation))
        case Refused(partition, generation, ranges, is_stale):
            refused = Event.Refused(
                partition=partition,
                generation=generation,
                bounds=[bound for span in ranges for bound in span],
                is_stale=is_stale,
            )
            return Event(refused=refused)
        case _:
            assert_never(item)
