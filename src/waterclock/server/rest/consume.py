"""Consuming over HTTP: long polls, server-sent events, and answers by lease."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waterclock.model.errors import WaterclockError
from waterclock.model.ids import Millis
from waterclock.model.limits import check
from waterclock.model.units import MINUTE_MS
from waterclock.node.groups.positions import Start
from waterclock.node.groups.session import AnswerKind
from waterclock.node.node import Node
from waterclock.schedule.duration import parse_duration
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import OF_GROUP, OF_GROUP_ONCE, OF_GROUP_WAITING
from waterclock.server.http.input import END, body_of, matching, parameters_of
from waterclock.server.http.messages import (
    EVENTS,
    KEEP_ALIVE_MS,
    Answered,
    Later,
    Request,
    Response,
    Streamed,
    json,
    problem,
)
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.problems import problem_of
from waterclock.server.rest.consumer import HttpConsumer, Key, Lease
from waterclock.server.rest.consumers import HttpConsumers
from waterclock.server.rest.models import (
    AnyTopicParameters,
    Duration,
    Earlier,
    Group,
    Name,
    RequestModel,
    ResponseModel,
    past_of,
)
from waterclock.server.rest.waiters import NO_STORE, Batch, DeliveredPage, Listening, Poll, event_of

CONSUMER = "http"
"""The name of consumers that give none; they share one session."""
WAIT_MS_MAX = 5 * MINUTE_MS
WAIT_MS_MIN = 100
"""What there is takes a moment to be delivered, too."""
LIMIT_MAX = 1_000
LEASES_MAX = 10_000
LISTEN_S = 3_600.0
"""How long a stream lasts; then the client asks again, as browsers do by themselves."""

_LEASE = r"^[0-9]{1,4}-[0-9]{1,16}-[0-9]{1,16}-[0-9]{1,9}" + END

_UNWRITTEN = Meta(
    description="After leave, if dead letters cannot be written for now: so many messages of the "
    "member will be some once they can."
)

LeaseText = Annotated[str, matching(_LEASE, "As it came with the message.", "0-1-0-1")]
Leases = Annotated[tuple[LeaseText, ...], Meta(max_length=LEASES_MAX)]


class ConsumerParameters(AnyTopicParameters):
    """Which consumer of which group."""

    group: Group
    consumer: Annotated[
        Name, Meta(description="Consumers of a group that give the same name, or none, are one.")
    ] = CONSUMER
    start: Annotated[
        Literal["earliest", "latest"], Meta(description="Where a new group begins.")
    ] = "earliest"
    since: Annotated[Earlier, Meta(description="A new group begins there instead.")] | None = None

    @property
    def key(self) -> Key:
        """The name of the consumer."""
        return Key(self.topic, self.group, self.consumer)


class PollParameters(ConsumerParameters):
    """Which consumer polls, and for how much."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="At most so many messages.")] = 10
    wait: Annotated[
        Duration,
        Meta(description="How long to wait for the first message; at most 5m.", examples=["30s"]),
    ] = "30s"


class EventsParameters(ConsumerParameters):
    """Which consumer listens, and how far ahead."""

    window: Annotated[
        int, Meta(ge=1, le=10_000, description="Most messages that are not answered for.")
    ] = 100
    ack: Annotated[
        Literal["manual", "auto"],
        Meta(description="auto: what was sent is acked, whether it was processed or not."),
    ] = "manual"


class Acks(RequestModel):
    """Answers about messages, by lease."""

    group: Group
    consumer: Name = CONSUMER
    ack: Annotated[Leases, Meta(description="Done.")] = ()
    nack: Annotated[Leases, Meta(description="Failed: again after a while.")] = ()
    retry_in: Annotated[Duration, Meta(description="When to try again what failed.")] | None = None
    give_back: Annotated[Leases, Meta(description="Not begun: not counted as a failure.")] = ()
    reject: Annotated[Leases, Meta(description="Hopeless: to the dead letters.")] = ()
    extend: Annotated[Leases, Meta(description="Still at it.")] = ()
    extend_by: Annotated[Duration, Meta(description="How long that takes, from now.")] = "30s"
    leave: Annotated[
        bool,
        Meta(
            description="The member leaves its group after this; "
            "the answer comes once what it rejected is in the dead letters, or after 10s."
        ),
    ] = False


class AcksResponse(ResponseModel):
    """What became of the answers."""

    accepted: int
    refused: list[str]
    """Leases that are over: the message may be in other hands."""
    unwritten: Annotated[int, _UNWRITTEN] | msgspec.UnsetType = msgspec.UNSET


class ConsumeApi:
    """Answers consumers."""

    def __init__(self, node: Node, consumers: HttpConsumers) -> None:
        self._node = node
        self._consumers = consumers

    # Polls

    def poll(self, request: Request) -> Answered | Later:
        """Return messages, once there are some."""
        asked = parameters_of(request, PollParameters)
        consumer = self._consumers.find(asked.key)
        if consumer is None:
            return self._open_and_poll(asked, request.left_ms)
        return self._poll(consumer, asked, request.left_ms)

    async def _open_and_poll(self, asked: PollParameters, left_ms: int) -> Answered:
        consumer = await self._open(asked)
        return self._poll(consumer, asked, left_ms, made_partitions=_made(consumer))

    def _poll(
        self,
        consumer: HttpConsumer,
        asked: PollParameters,
        left_ms: int,
        *,
        made_partitions: int = 0,
    ) -> Answered:
        wait_ms = min(max(parse_duration(asked.wait), WAIT_MS_MIN), WAIT_MS_MAX)
        if left_ms:  # it has waited at another node, which is gone
            wait_ms = min(wait_ms, left_ms)
        poll = Poll(self._consumers, consumer, asked.limit, made_partitions)
        self._consumers.wait(consumer, poll, wait_ms / 1_000)
        return poll

    async def _open(self, asked: ConsumerParameters) -> HttpConsumer:
        start = Start[asked.start.upper()]
        start_ms = Millis(0)
        if asked.since is not None:
            start, start_ms = Start.TIME, past_of(asked.since, self._node.clock.now_ms())
        return await self._consumers.open(asked.key, start=start, start_ms=start_ms)

    # Streams

    async def events(self, request: Request) -> Streamed:
        """Return messages as they come."""
        asked = parameters_of(request, EventsParameters)
        consumer = await self._open(asked)
        pieces = self._pieces(consumer, asked.window, is_auto=asked.ack == "auto")
        return Streamed(200, pieces, EVENTS, NO_STORE)

    async def _pieces(
        self, consumer: HttpConsumer, window: int, *, is_auto: bool
    ) -> AsyncIterator[bytes]:
        yield b": %b\n\n" % "/".join(consumer.key).encode()
        if made := _made(consumer):
            yield b": the topic was made, madePartitions %d\n\n" % made
        stream = Listening(consumer, window)
        loop = asyncio.get_running_loop()
        end = loop.time() + LISTEN_S
        try:
            while True:
                batch = stream.ask()
                while not await _within(batch, min(KEEP_ALIVE_MS / 1_000, end - loop.time())):
                    if loop.time() >= end:
                        return
                    yield b": nothing yet\n\n"
                messages = batch.found.result()
                yield b"".join(map(event_of, messages))
                stream.sent(is_acked=is_auto)
        except WaterclockError as error:
            yield b"event: problem\ndata: %b\n\n" % problem_of(error).body
        finally:
            stream.close()

    # Answers

    def acks(self, request: Request) -> Answered | Later:
        """Take what a consumer says of messages."""
        topic = parameters_of(request, AnyTopicParameters).topic
        said = body_of(request, Acks)
        self._node.topics.get(topic)
        answers = [
            (AnswerKind.ACK, said.ack, 0),
            (AnswerKind.NACK, said.nack, _span_ms(said.retry_in)),
            (AnswerKind.GIVE_BACK, said.give_back, 0),
            (AnswerKind.REJECT, said.reject, 0),
            (AnswerKind.EXTEND, said.extend, _span_ms(said.extend_by)),
        ]
        count = sum(len(leases) for _, leases, _ in answers)
        check("leases", count, LEASES_MAX)
        consumer = self._consumers.find(Key(topic, said.group, said.consumer))
        refused: list[str] = []
        for kind, leases, after_ms in answers:
            if consumer is None:
                refused += leases
            elif leases:
                refused += map(str, consumer.answer(kind, map(_lease, leases), after_ms))
        response = AcksResponse(accepted=count - len(refused), refused=refused)
        if consumer is None or not said.leave:
            return _acks_answer(response)
        consumer.session.leave()
        return _once_settled(consumer, response)

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        return [
            Operation(
                "GET", "/topics/{topic}/messages", self.poll, "poll",
                "Take messages for a group; waits for the first.",
                {200: ResponseSpec("Messages; none if the time is up.", DeliveredPage)},
                tag="messages",
                description="Each comes with a lease. Answer for it before its deadline with "
                "POST /topics/{topic}/acks, or it comes again.",
                parameters=PollParameters, is_taking=True, problems=(404, 409),
                place=OF_GROUP_WAITING,
                needs=Needs("consume", topic="topic", group="group"),
                makes=("topic", "group"),
            ),
            Operation(
                "GET", "/topics/{topic}/events", self.events, "listen",
                "Take messages for a group as they come, as server-sent events.",
                {200: ResponseSpec("Events.", content_type=EVENTS)}, tag="messages",
                description="The data of an event is a message as in a poll, its id the lease.",
                parameters=EventsParameters, is_taking=True, problems=(404, 409),
                place=OF_GROUP,
                needs=Needs("consume", topic="topic", group="group"),
                makes=("topic", "group"),
            ),
            Operation(
                "POST", "/topics/{topic}/acks", self.acks, "ack",
                "Say what became of messages: ack, nack, give back, reject, extend.",
                {200: ResponseSpec("What was accepted.", AcksResponse)}, tag="messages",
                parameters=AnyTopicParameters, body=Acks,
                body_example={"group": "billing", "ack": ["0-1-0-1"]}, problems=(404, 409),
                is_last_to_stop=True,
                place=OF_GROUP_ONCE,
                needs=Needs("consume", topic="topic", group="group"),
            ),
        ]  # fmt: skip


def _acks_answer(response: AcksResponse) -> Response:
    if response.refused and not response.accepted:
        return problem(409, "these leases are over", error="Busy", field="lease")
    return json(200, response)


async def _once_settled(consumer: HttpConsumer, response: AcksResponse) -> Response:
    """Answer once what the consumer rejected is written: it may ask for dead letters next."""
    response.unwritten = await consumer.session.settled() or msgspec.UNSET
    return _acks_answer(response)


async def _within(batch: Batch, seconds: float) -> bool:
    done, _ = await asyncio.wait([batch.found], timeout=seconds)
    return bool(done)


def _span_ms(after: str | None) -> int:
    return 0 if after is None else max(1, parse_duration(after))


def _lease(text: str) -> Lease:
    return Lease(*map(int, text.split("-")))


def _made(consumer: HttpConsumer) -> int:
    """Return the partitions of a topic that a consumer has made, once: later requests have not
    mistyped its name."""
    made, consumer.session.made_partitions = consumer.session.made_partitions, 0
    return made
