"""The publishes of one connection: from the frame to the log, and back when it is durable.

Nothing here waits: a batch is checked and appended in the turn of the loop in which it came, the
fsync that is next covers it with all else of that turn, and its answer is written when that fsync
is done. So what comes first goes at once, and the rest shares the next fsync; there is no timer.

A few take longer: those that make their topic, those of a principal that goes too fast, those that
find no room, and those for partitions that other nodes lead or for several. The first three hold up
what comes behind them, so that it stays in order, and nothing more is read meanwhile.
"""

import asyncio
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError
from grpc import StatusCode

from waterclock.cluster.peer_link.frames import Kind
from waterclock.log.batch import Batch
from waterclock.log.lone_message import parse_any
from waterclock.model.errors import BadInput, Stopping
from waterclock.node.publish.publisher import Published
from waterclock.node.topics import Topic
from waterclock.server.access import Asked, Demand, permit_of
from waterclock.server.calls import MethodCounters
from waterclock.server.grpc.fields import acks_of
from waterclock.server.grpc.publish import batch_response, problem_of
from waterclock.server.statuses import ours, status_of
from waterclock.v1.broker_pb2 import PublishBatchRequest

if TYPE_CHECKING:
    from waterclock.server.native.link import ClientLink

METHOD: Final = "Broker/PublishBatch"
BATCHES_MAX: Final = 256
"""Batches of a connection being worked on; beyond that it is not read."""


class Waiting(NamedTuple):
    """A publish whose turn has not come."""

    number: int
    request: PublishBatchRequest
    size: int
    begun: float


class Publishing:
    """The publishes of one connection."""

    __slots__ = ("_counters", "_in_flight", "_link", "_permitted", "_reloads", "_task", "_waiting")

    def __init__(self, link: "ClientLink") -> None:
        self._link = link
        self._in_flight = 0
        self._waiting: deque[Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        """What sees to those that wait."""
        self._permitted: set[str] = set()
        self._reloads = -1
        """Of the secure folder, when these topics were permitted."""
        self._counters = link.server.calls.methods.setdefault(METHOD, MethodCounters())

    def __repr__(self) -> str:
        return f"<Publishing {self._in_flight} batches, {len(self._waiting)} waiting>"

    def __bool__(self) -> bool:
        return bool(self._in_flight or self._waiting)

    @property
    def is_full(self) -> bool:
        """Nothing more is to be read for now."""
        return self._in_flight >= BATCHES_MAX or bool(self._waiting)

    def close(self) -> None:
        """Nobody waits for an answer any more; what was appended stays."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def requested(self, number: int, payload: bytes) -> None:
        """Take a batch."""
        begun = perf_counter()
        try:
            request = PublishBatchRequest.FromString(payload)
        except DecodeError:
            self._refuse(number, BadInput("the payload is no PublishBatchRequest"), begun)
            return
        one = Waiting(number, request, len(payload), begun)
        if self._waiting or not self._is_ready(one):
            self._waiting.append(one)
            self._link.read_or_not()
            if self._task is None:
                self._task = self._link.server.tasks.create_task(self._see_to_waiting())
                self._task.add_done_callback(self._seen_to)
            return
        self._link.server.publishing.acquire_nowait(one.size)
        self._begin(one)
        if self._in_flight >= BATCHES_MAX:
            self._link.read_or_not()

    def _is_ready(self, one: Waiting) -> bool:
        """Return whether it can be appended at once; what is refused is."""
        server, principal = self._link.server, self._link.principal
        if not server.publishing.has_room(one.size):
            return False
        if principal is not None:
            usage = server.access.usage_of(principal)
            if usage.quotas.bytes_per_s is not None:
                return False
        return server.node.topics.find(one.request.topic) is not None

    # One that need not wait

    def _begin(self, one: Waiting, made: int = 0) -> None:
        """Append a batch; its bytes are counted."""
        self._in_flight += 1
        node, request = self._link.server.node, one.request
        partition = request.partition if request.HasField("partition") else None
        try:
            self._check(request)
            batch = parse_any(request.arrow, node.config.limits, now_ms=node.clock.now_ms())
            topic = node.topics.get(request.topic)
            is_begun = node.publisher.publish_here(
                topic,
                batch,
                partial(self._durable, one, made),
                partition=partition,
                allow_duplicate=request.allow_duplicate,
                is_sticky=request.is_sticky,
                acks=acks_of(request.acks),
            )
        except Exception as error:
            self._durable(one, made, error)
            return
        if not is_begun:
            task = self._link.server.tasks.create_task(
                self._publish_elsewhere(one, topic, batch, partition, made)
            )
            # One that is cancelled before its first step tells nobody by itself.
            task.add_done_callback(partial(self._ended, one))

    def _check(self, request: PublishBatchRequest) -> None:
        """Raise unless the client may publish this."""
        link, name = self._link, request.topic
        server = link.server
        if link.is_stopping:
            raise Stopping("the node is stopping: try again, or elsewhere")
        if server.calls.check is not None:
            server.calls.check(METHOD, request)
        if link.principal is None:
            return
        if link.refused is not None:
            # As often as it is asked: with each traceback before, it would hold what was refused.
            raise link.refused.with_traceback(None)
        access = server.access
        if self._reloads != access.reloads:
            self._permitted.clear()
            self._reloads = access.reloads
        if name not in self._permitted:
            principal = access.current(link.principal)
            permit = permit_of(principal, (Demand("publish", name or None),))
            usage = access.usage_of(principal)
            if usage.quotas.has_counts:
                server.counts.check(usage, permit, ("topic",))
            self._permitted.add(name)

    def _durable(self, one: Waiting, made: int, outcome: Published | Exception) -> None:
        """Answer. Never raises: it is called in the midst of the store."""
        link = self._link
        link.server.publishing.release(one.size)
        self._in_flight -= 1
        if isinstance(outcome, Exception):
            self._refuse(one.number, outcome, one.begun)
        else:
            answer = batch_response(outcome)
            answer.made_partitions = answer.made_partitions or made
            link.answer(Kind.PUBLISHED, one.number, answer.SerializeToString())
            self._note(StatusCode.OK, one.begun)
        if self._in_flight == BATCHES_MAX - 1:
            link.read_or_not()

    def _refuse(self, number: int, error: Exception, begun: float) -> None:
        link = self._link
        if link.principal is not None:
            access = link.server.access
            access.refusals.note(error, "grpc")
            access.denied(Asked("grpc", METHOD, link.host, link.principal), ours(error))
        status = status_of(error, METHOD)
        link.answer(Kind.REFUSED, number, problem_of(status).SerializeToString())
        self._note(status.code, begun)

    def _note(self, code: StatusCode, begun: float) -> None:
        self._counters.note(code)
        self._counters.milliseconds.observe((perf_counter() - begun) * 1_000)

    async def _publish_elsewhere(
        self, one: Waiting, topic: Topic, batch: Batch, partition: int | None, made: int
    ) -> None:
        """Publish a batch that is for several partitions, or that other nodes are to take."""
        request = one.request
        outcome: Published | Exception
        try:
            outcome = await self._link.server.node.publisher.publish_parsed(
                topic,
                batch,
                partition=partition,
                allow_duplicate=request.allow_duplicate,
                is_sticky=request.is_sticky,
                acks=acks_of(request.acks),
            )
        except Exception as error:
            outcome = error
        self._durable(one, made, outcome)

    def _ended(self, one: Waiting, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._durable(one, 0, Stopping("the node stopped before the disk answered"))

    # Those that wait

    async def _see_to_waiting(self) -> None:
        """Begin what waits, one after the other."""
        server = self._link.server
        while self._waiting:
            one, made = self._waiting[0], 0
            try:
                await self._until_allowed(one)
                if server.node.topics.find(one.request.topic) is None:
                    made = await self._make_topic(one.request)
            except Exception as error:
                self._waiting.popleft()
                self._refuse(one.number, error, one.begun)
                continue
            await server.publishing.acquire(one.size)
            self._waiting.popleft()
            self._begin(one, made)

    def _seen_to(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            self._link.read_or_not()

    async def _until_allowed(self, one: Waiting) -> None:
        """Wait until the principal may send so many bytes."""
        access, principal = self._link.server.access, self._link.principal
        if principal is None:
            return
        usage = access.usage_of(principal)
        # What refills a bucket is time alone.
        while wait_ms := usage.wait_for_bytes(one.size, access.steady_ms()):  # noqa: ASYNC110
            await asyncio.sleep(wait_ms / 1_000)

    async def _make_topic(self, request: PublishBatchRequest) -> int:
        """Make a topic before its first batch; return its partitions if that made it."""
        node = self._link.server.node
        partition = request.partition if request.HasField("partition") else None
        self._check(request)
        # What is refused makes no topic.
        acks_of(request.acks)
        parse_any(request.arrow, node.config.limits, now_ms=node.clock.now_ms())
        return (await node.topics.ensure(request.topic, partition=partition)).made_partitions
