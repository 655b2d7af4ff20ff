"""A subscription: messages of a topic for one member of a group, as an async iterator.

    async with client.subscribe("orders", group="billing") as messages:
        async for message in messages:
            ...
            message.ack()

One task reads the stream, one writes it; the program takes messages from the batch at hand without
waiting for anything. The node bounds what lies here by the credit. If the stream breaks, a new one
is opened after a while, again and again, at another node if there are several; what was held by the
old one is void and comes again. One that goes by gRPC, since there was no link to the node, moves
to the link once there is one and it holds nothing.

Leaving the block sends the last answers and gives back what was not answered; without a block that
is done when the client is closed.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType

import grpc

from waterclock.client.connection import Connection
from waterclock.client.consumer.delivery import Delivery, ReceivedBatch, ReceivedMessage
from waterclock.client.consumer.session import Session
from waterclock.client.consumer.tracing import MessageSpans
from waterclock.client.errors import error_of
from waterclock.client.retry import is_transient
from waterclock.model.errors import BadInput, Closed, NodeFailed, Unreachable, WaterclockError
from waterclock.model.sections import DeliveryConfig
from waterclock.v1 import broker_pb2

YIELD_S = 0.005
"""A program that never waits lets the stream's tasks run this often."""

_log = logging.getLogger("waterclock.client")
_Stream = grpc.aio.StreamStreamCall[broker_pb2.SubscribeRequest, broker_pb2.SubscribeResponse]


class Subscription:
    """Messages as they come. Iterating opens it; `async with` also leaves in good order. Several
    tasks may iterate over it."""

    def __init__(
        self,
        connection: Connection,
        tasks: asyncio.TaskGroup,
        opening: broker_pb2.SubscribeRequest,
        *,
        keep_alive: bool = False,
    ) -> None:
        self._connection = connection
        self._wait = connection.wait()
        self._tasks = tasks
        self._opening = opening
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._current: Iterator[ReceivedMessage] = iter(())
        self._yield_at = 0.0
        self._arrived = asyncio.Event()
        self._has_answers = asyncio.Event()
        self._has_urgent_answers = asyncio.Event()
        self._sleeps_until_ms = 0
        self._made_partitions = 0
        self._is_leaving = False
        self._is_over = False
        self._failure: WaterclockError | None = None
        tracer = connection.tracer
        self._spans = None if tracer is None else MessageSpans(tracer, opening.open.group)
        self._session = self._new_session()
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        opening = self._opening.open
        return f"<Subscription to {opening.topic} as {opening.group}/{self.member}>"

    @property
    def member(self) -> str:
        return self._session.member or self._opening.open.member

    @property
    def made_partitions(self) -> int:
        """Not 0: there was no such topic; subscribing made it, with so many partitions."""
        return self._made_partitions or self._session.made_partitions

    @property
    def partitions(self) -> list[int]:
        """The partitions this member has at the moment."""
        return self._session.partitions

    async def __aenter__(self) -> "Subscription":
        self._task = self._tasks.create_task(self._run())
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Send the last answers, give back the rest, and end the iteration. The node has taken all
        of it on return, and what was rejected is in the dead letters, if they can be written."""
        self._is_leaving = True
        self._wake(True)
        if self._task is None:
            return
        if self._session.is_open:
            timeout_s = self._connection.settings.close_timeout_ms / 1_000
            done, _ = await asyncio.wait([self._task], timeout=timeout_s)
            if not done:
                _log.warning(
                    "leave_unconfirmed topic=%s after_s=%g", self._opening.open.topic, timeout_s
                )
        self.abandon()
        await asyncio.wait([self._task])

    def abandon(self) -> None:
        """End the stream as it stands."""
        self._is_leaving = True
        if self._task is not None:
            self._task.cancel()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> ReceivedMessage:
        now = time.monotonic()
        if now >= self._yield_at:
            await self._yield(now)
        for message in self._current:
            return message
        return await self._next_message()

    async def _next_message(self) -> ReceivedMessage:
        while True:
            # After a wait, others may have begun a delivery: it is finished before the next.
            for message in self._current:
                return message
            delivery = self._session.peek()
            if delivery is not None:
                self._current = delivery.messages()
            elif not await self._more():
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Yield what comes as Arrow batches, each to be acked as a whole."""
        while (delivery := await self.next_delivery()) is not None:
            yield delivery.batch()

    async def next_delivery(self) -> Delivery | None:
        """Wait for messages and take them; return None when there will be none any more."""
        while (delivery := self._session.next_delivery()) is None:
            if not await self._more():
                return None
        return delivery

    def put_back(self, delivery: Delivery) -> None:
        """Let the next to ask go on with a delivery that was not finished; any thread may call."""
        if delivery.next_row < delivery.end_row:
            self._on_loop(lambda: self._put_back(delivery))

    def _put_back(self, delivery: Delivery) -> None:
        self._session.buffer.appendleft(delivery)
        self._arrived.set()

    async def _more(self) -> bool:
        """Wait until there may be messages; False when there will be none any more."""
        if self._failure is not None:
            raise self._failure
        if self._is_over or self._is_leaving:
            return False
        if self._task is None:
            await self.__aenter__()
            return True  # messages may have come together with the answer
        if self._session.is_starving:
            self._session.acks.flush()
        self._arrived.clear()
        await self._arrived.wait()
        return True

    async def _yield(self, now: float) -> None:
        """Let the stream's tasks run; without it a program that never waits would starve them."""
        await asyncio.sleep(0)
        self._session.tick(self._connection.clock.monotonic_ms())
        self._yield_at = now + YIELD_S

    def _new_session(self) -> Session:
        return Session(
            self._opening.open.topic,
            keep_alive=self._keep_alive,
            wake=self._wake,
            now_ms=self._connection.now_ms,
            monotonic_ms=self._connection.clock.monotonic_ms,
            credit=self._opening.credit if self._opening.HasField("credit") else None,
            crypto_keys=self._connection.keys,
            spans=self._spans,
        )

    def _wake(self, is_urgent: bool) -> None:
        """Have the writer write; programs may answer on other threads."""
        self._on_loop(lambda: self._wake_here(is_urgent))

    def _wake_here(self, is_urgent: bool) -> None:
        self._has_answers.set()
        if is_urgent:
            self._has_urgent_answers.set()

    def _on_loop(self, work: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            work()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    async def _run(self) -> None:
        """Keep a stream open until the program leaves or the node refuses for good."""
        failure: WaterclockError | None = Closed("the subscription was closed")
        try:
            failure = await self._keep_open()
        except Exception as bug:
            failure = NodeFailed(f"the client failed: {bug!r}")
            failure.__cause__ = bug
        finally:
            self._session.void()
            self._is_over = True
            self._failure = None if self._is_leaving else failure
            if not self._opened.done():
                self._opened.set_exception(failure or Closed("the subscription was closed"))
                self._opened.exception()  # whoever waited for it may be gone
            self._arrived.set()

    async def _keep_open(self) -> WaterclockError | None:
        backoff = self._connection.backoff()
        give_up_at = self._loop.time() + self._connection.settings.connect_timeout_ms / 1_000
        while True:
            await self._connection.settle_link()
            address = self._connection.address
            error = await self._run_stream(self._session, address)
            _log.debug("stream_ended subscription=%r address=%s error=%r", self, address, error)
            if self._session.is_open:
                backoff.reset()
            self._made_partitions = self.made_partitions
            self._session.void()
            pause_ms = backoff.next_ms(error)
            if self._is_leaving:
                return error
            if self._session.is_moving:
                self._session = self._new_session()
                continue
            is_left = self._connection.failed(address, error, backoff.failures)
            if not (is_left or is_transient(error)):
                return error
            if not self._opened.done() and self._loop.time() >= give_up_at:
                return error
            self._wait.away(error)
            await asyncio.sleep(pause_ms / 1_000)
            self._session = self._new_session()

    async def _run_stream(self, session: Session, address: str) -> WaterclockError:
        """Hold one stream open to a node; return why it ended."""
        may_move = self._connection.native.find(address) is None
        stream = self._connection.broker.Subscribe()
        try:
            await stream.write(self._opening)
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(stream, session, may_move=may_move))
                error = await self._read(stream, session, address)
                writer.cancel()
            return error
        except grpc.aio.AioRpcError as rpc:
            return error_of(rpc, address)
        finally:
            stream.cancel()

    async def _read(self, stream: _Stream, session: Session, address: str) -> WaterclockError:
        """Take in what comes until the stream ends; return why it did."""
        try:
            while isinstance(response := await stream.read(), broker_pb2.SubscribeResponse):
                session.handle(response)
                self._arrived.set()
                deadline_ms = session.next_deadline()
                if deadline_ms is not None and deadline_ms < self._sleeps_until_ms:
                    self._has_answers.set()  # a lease shorter than the writer's sleep
                if session.is_open:
                    self._wait.here()
                    if not self._opened.done():
                        self._opened.set_result(None)
        except grpc.aio.AioRpcError as rpc:
            return error_of(rpc, address)
        except NodeFailed as error:
            return error
        return Unreachable(f"{address} ended the stream")

    async def _write(self, stream: _Stream, session: Session, *, may_move: bool) -> None:
        """Send answers, and at least heartbeats, until the stream ends or there is a better one."""
        try:
            has_left = False
            while not has_left:
                await self._time_to_write(session)
                self._has_answers.clear()
                self._has_urgent_answers.clear()
                request = session.request(self._connection.clock.monotonic_ms())
                if may_move and not self._is_leaving:
                    session.is_moving = session.is_idle and self._has_link()
                request.leave = has_left = self._is_leaving or session.is_moving
                await stream.write(request)
            await stream.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader hears why

    def _has_link(self) -> bool:
        """Return whether there is a link to the node by now; have it dialled if that is due."""
        connection = self._connection
        connection.want_link(connection.native)
        return connection.native.find(connection.address) is not None

    async def _time_to_write(self, session: Session) -> None:
        """Wait until it is time to write: acks linger for company, nothing else does."""
        now_ms = self._connection.clock.monotonic_ms()
        until_ms = now_ms + session.heartbeat_ms // 2
        if (deadline_ms := session.next_deadline()) is not None:
            until_ms = min(until_ms, max(deadline_ms, now_ms))
        self._sleeps_until_ms = until_ms
        if await _is_set_within(self._has_answers, until_ms - now_ms):
            await _is_set_within(self._has_urgent_answers, self._connection.settings.ack_flush_ms)


def credit_of(messages: int | None, bytes_: int | None) -> broker_pb2.Credit | None:
    """Return what a member wants to hold; None leaves it to the node."""
    if messages is None and bytes_ is None:
        return None
    if messages is not None and messages < 1:
        raise BadInput(f"prefetch must be at least 1 (got {messages})")
    if bytes_ is not None and bytes_ < 1:
        raise BadInput(f"prefetch_bytes must be at least 1 (got {bytes_})")
    usual = DeliveryConfig()
    return broker_pb2.Credit(
        messages=messages or usual.credit_messages, bytes=bytes_ or usual.credit_bytes
    )


async def _is_set_within(event: asyncio.Event, ms: float) -> bool:
    try:
        async with asyncio.timeout(ms / 1_000):
            return await event.wait()
    except TimeoutError:
        return False
