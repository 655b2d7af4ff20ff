"""A node in memory that speaks the whole wire: enough of one for the client to be tested against.

It keeps one partition for each topic unless told otherwise, delivers in log order within credit,
and hands out again what a broken stream held. What it does not do is time: nothing expires, and a
retry comes at once. Tests make it fail, wait or say what they like.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
import pyarrow as pa

from waterclock.log.batch import decode_untrusted
from waterclock.log.schema import MESSAGES
from waterclock.model.errors import WaterclockError
from waterclock.server.statuses import status_of
from waterclock.v1 import admin_pb2, admin_pb2_grpc, broker_pb2, broker_pb2_grpc
from waterclock.v1.broker_pb2 import Answer, SubscribeRequest, SubscribeResponse

Row = dict[str, object]
Context = grpc.aio.ServicerContext[object, object]
NOW_MS = 1_800_000_000_000


@dataclass
class FakeTopic:
    """The log of one topic, one partition, and which ids it has seen."""

    rows: list[Row] = field(default_factory=list)
    seen: dict[bytes, int] = field(default_factory=dict)

    def publish(self, batch: pa.RecordBatch) -> tuple[list[int], list[int]]:
        """Store what is new; return the offset of each row, and which rows are repeats."""
        offsets, repeats = [], []
        for number, row in enumerate(batch.to_pylist()):
            if row["message_id"] in self.seen:
                repeats.append(number)
            else:
                self.seen[row["message_id"]] = len(self.rows)
                self.rows.append(row)
            offsets.append(self.seen[row["message_id"]])
        return offsets, repeats

    @property
    def values(self) -> list[object]:
        return [row["value"] for row in self.rows]


@dataclass
class FakeGroup:
    """Which offsets a group has done, and how often each was tried."""

    done: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: 1))
    dead: list[int] = field(default_factory=list)
    generation: int = 0


class FakeSession:
    """One member's stream, as the node sees it."""

    def __init__(self, topic: FakeTopic, group: FakeGroup, moved: asyncio.Event) -> None:
        self.topic = topic
        self.group = group
        self.moved = moved
        self.requests: list[SubscribeRequest] = []
        self.changed = asyncio.Event()
        self.extra: deque[SubscribeResponse] = deque()
        self.held: set[int] = set()
        self.credit = 1_000
        self.has_left = False
        self.breaks_with: WaterclockError | None = None
        self.generation = group.generation = group.generation + 1

    def hear(self, request: SubscribeRequest) -> None:
        self.requests.append(request)
        if request.HasField("credit"):
            self.credit = request.credit.messages
        for answer in request.answers:
            if answer.generation == self.generation:
                for start, end in zip(answer.bounds[::2], answer.bounds[1::2], strict=True):
                    self.answered(answer.kind, set(range(start, end)))
        self.has_left |= request.leave
        self.changed.set()
        self.moved.set()

    def answered(self, kind: int, offsets: set[int]) -> None:
        offsets &= self.held
        if kind == Answer.EXTEND:
            return
        self.held -= offsets
        self.group.held -= offsets
        if kind in (Answer.ACK, Answer.REJECT):
            self.group.done |= offsets
        if kind == Answer.REJECT:
            self.group.dead += sorted(offsets)
        if kind == Answer.NACK:
            for offset in offsets:
                self.group.attempts[offset] += 1

    def next_delivery(self, count_max: int) -> SubscribeResponse | None:
        group, unused = self.group, max(self.credit - len(self.held), 0)
        free = [
            offset
            for offset in range(len(self.topic.rows))
            if offset not in group.done and offset not in group.held
        ][: min(unused, count_max)]
        # One delivery is of one attempt.
        free = [offset for offset in free if group.attempts[offset] == group.attempts[free[0]]]
        if not free:
            return None
        self.held |= set(free)
        group.held |= set(free)
        self.moved.set()
        bounds = [bound for offset in free for bound in (offset, offset + 1)]
        delivery = broker_pb2.Delivery(
            partition=0,
            generation=self.generation,
            attempt=group.attempts[free[0]],
            deadline_ms=NOW_MS + 30_000,
            lease_ms=30_000,
            bounds=merged(bounds),
            messages=messages([self.topic.rows[offset] for offset in free]),
        )
        return SubscribeResponse(delivery=delivery)


class FakeNode(broker_pb2_grpc.BrokerServicer, admin_pb2_grpc.AdminServicer):
    """The servicers, what they hold, and what they were asked."""

    def __init__(self) -> None:
        # Arrow imports pandas with its first `from_pylist`: before a client is there, for it takes
        # seconds, and whoever has several nodes leaves one that answers no ping for three.
        pa.array([0])
        self.topics: dict[str, FakeTopic] = defaultdict(FakeTopic)
        self.groups: dict[tuple[str, str], FakeGroup] = defaultdict(FakeGroup)
        self.sessions: list[FakeSession] = []
        self.batches: list[list[object]] = []
        """The values of each batch that arrived, refused ones included."""
        self.requests: list[broker_pb2.PublishBatchRequest] = []
        self.fails_before: deque[Exception | None] = deque()
        """For each publish to come: refuse it so, before it is stored. A ConnectionError breaks the
        stream."""
        self.fails_after: deque[Exception | None] = deque()
        """The same, after it was stored: the answer is lost."""
        self.writing = asyncio.Lock()
        self.replayed = 0
        self.replay_breaks: list[str] = []
        self.replay_heard_end = False
        self.replay_forgets = False
        """Reports are lost with their stream."""
        self.replays: list[broker_pb2.ReplayRequest.Begin] = []
        self.moved = asyncio.Event()
        self.refuses: Callable[[Row], WaterclockError | None] = lambda row: None
        self.is_open = asyncio.Event()
        """Publishes wait for this before they are answered."""
        self.is_open.set()
        self.in_flight = self.in_flight_max = 0
        self.delivery_size = 100
        self.limits = admin_pb2.NodeInfo.Limits(
            message_bytes_max=10_000, batch_bytes_max=1_000_000, batch_messages_max=1_000
        )
        self.name = "fake"
        self.named: list[admin_pb2.NodeAddress] = []
        """The nodes of its cluster, as it tells of them."""
        self.host = "127.0.0.1"
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        options = [("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options, interceptors=self.interceptors())
        broker_pb2_grpc.add_BrokerServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        self.port = self.listen(self._server, self.address)
        await self._server.start()

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return []

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        return server.add_insecure_port(address)

    async def stop(self) -> None:
        """Go away at once, as if killed; what streams held is free again."""
        assert self._server is not None
        await self._server.stop(None)
        for session in self.sessions:
            session.group.held -= session.held
        self.sessions.clear()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was asked of this node, or done by it, makes something true."""
        while not condition():
            self.moved.clear()
            await self.moved.wait()

    async def GetNode(self, request, context):
        return admin_pb2.NodeInfo(
            name=self.name, now_ms=NOW_MS, limits=self.limits, nodes=self.named
        )

    async def PublishStream(self, request_iterator, context):  # type: ignore[override]
        async with asyncio.TaskGroup() as tasks:
            while isinstance(request := await context.read(), broker_pb2.PublishStreamRequest):
                tasks.create_task(self.answer(request, context))

    async def answer(self, request: broker_pb2.PublishStreamRequest, context: Context) -> None:
        answer = broker_pb2.PublishStreamResponse(sequence=request.sequence)
        try:
            answer.published.CopyFrom(await self.publish(request.batch))
        except WaterclockError as error:
            answer.problem.CopyFrom(problem_of(error))
        except ConnectionError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        async with self.writing:
            await context.write(answer)

    async def publish(
        self, request: broker_pb2.PublishBatchRequest
    ) -> broker_pb2.PublishBatchResponse:
        batch = decode_untrusted(request.arrow)
        self.batches.append(batch.column("value").to_pylist())
        self.requests.append(request)
        self.moved.set()
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            await self.is_open.wait()
            fail(self.fails_before)
            for row in batch.to_pylist():
                fail(deque([self.refuses(row)]))
            offsets, repeats = self.topics[request.topic].publish(batch)
            for session in self.sessions:
                session.changed.set()
            fail(self.fails_after)
        finally:
            self.in_flight -= 1
        return broker_pb2.PublishBatchResponse(
            count=len(offsets),
            partition=request.partition,
            first_offset=offsets[0],
            offsets=offsets if repeats else None,
            duplicates=repeats,
        )

    async def Subscribe(self, request_iterator, context):  # type: ignore[override]
        first = await context.read()
        place = first.open.topic, first.open.group
        session = FakeSession(self.topics[first.open.topic], self.groups[place], self.moved)
        session.hear(first)
        self.sessions.append(session)
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(listen(session, context))
                async for response in self.responses(session):
                    await context.write(response)
                listening.cancel()
            if session.breaks_with is not None:
                status = status_of(session.breaks_with, "a test")
                await context.abort(status.code, status.details, status.trailers)
        finally:
            session.group.held -= session.held
            if session in self.sessions:
                self.sessions.remove(session)
            for other in self.sessions:
                other.changed.set()
            self.moved.set()

    async def Replay(self, request_iterator, context):  # type: ignore[override]
        first = await context.read()
        begin = first.begin
        self.replays.append(begin)
        self.replayed = max(self.replayed, *(place.offset for place in first.done), 0)
        rows = self.topics[begin.topic].rows
        for at in range(self.replayed, len(rows), self.delivery_size):
            part = rows[at : at + self.delivery_size]
            batch = broker_pb2.ReplayResponse.Batch(
                bounds=[at, at + len(part)], messages=messages(part), next_offset=at + len(part)
            )
            await context.write(broker_pb2.ReplayResponse(batch=batch))
            if begin.name:
                reported = (await context.read()).done[0].offset
                self.replayed = self.replayed if self.replay_forgets else reported
            if self.replay_breaks:
                await context.abort(grpc.StatusCode.UNAVAILABLE, self.replay_breaks.pop())
        finished = broker_pb2.ReplayResponse.Finished(messages=len(rows))
        await context.write(broker_pb2.ReplayResponse(finished=finished))
        self.replay_heard_end = await context.read() is grpc.aio.EOF

    async def responses(self, session: FakeSession) -> AsyncIterator[SubscribeResponse]:
        yield SubscribeResponse(
            opened=SubscribeResponse.Opened(
                member="m-1", heartbeat_ms=3_000, credit=broker_pb2.Credit(messages=1_000)
            )
        )
        yield SubscribeResponse(
            assigned=SubscribeResponse.Assigned(partition=0, generation=session.generation)
        )
        while not session.has_left and session.breaks_with is None:
            session.changed.clear()
            while session.extra:
                yield session.extra.popleft()
            while (response := session.next_delivery(self.delivery_size)) is not None:
                yield response
            await session.changed.wait()


async def listen(session: FakeSession, context: Context) -> None:
    while isinstance(request := await context.read(), SubscribeRequest):
        session.hear(request)


def fail(failures: deque[Exception | None]) -> None:
    """Raise the next failure, if there is one."""
    error = failures.popleft() if failures else None
    if error is not None:
        raise error


def problem_of(error: WaterclockError) -> broker_pb2.Problem:
    """Return what a node says about a batch of a stream."""
    status = status_of(error, "a test")
    facts = dict(status.trailers)
    return broker_pb2.Problem(
        code=status.code.value[0],
        message=status.details,
        error=facts["waterclock-error"],
        field=facts.get("waterclock-field", ""),
        limit=int(facts.get("waterclock-limit", "0")),
    )


def merged(bounds: list[int]) -> list[int]:
    """Join the ranges that touch."""
    joined: list[int] = []
    for bound in bounds:
        if joined and joined[-1] == bound:
            joined.pop()
        else:
            joined.append(bound)
    return joined


def messages(rows: list[Row]) -> broker_pb2.Messages:
    """Return rows as they travel."""
    arrow = pa.RecordBatch.from_pylist(rows, schema=MESSAGES).serialize().to_pybytes()
    return broker_pb2.Messages(arrow=arrow, append_ms=NOW_MS)


@contextlib.asynccontextmanager
async def fake_node() -> AsyncIterator[FakeNode]:
    """A fake that is running."""
    node = FakeNode()  # type: ignore[abstract]
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
