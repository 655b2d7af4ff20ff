"""What programs with the Python client do in a round: one client that knows all nodes publishes,
and consumes as a member of a group."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime

import waterclock
from tests.cluster.chaos.load import Node
from tests.cluster.chaos.topics.record import Delivered, Refusal, RoundRecord, RunClock
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import WaterclockError
from waterclock.model.message import Acks

GRPC_PORT = 9000
AGAIN_S = 0.1
ERRORS = "client errors"
"""What programs saw: what the client raised, after all that it had tried by itself."""
SETTINGS = ClientSettings(delivery_timeout_ms=15_000, call_timeout_ms=6_000)


class GrpcClients:
    """The client of a round. What it raises is counted, and tried again."""

    def __init__(
        self, record: RoundRecord, clock: RunClock, topic: str, client: waterclock.Client
    ) -> None:
        self._record = record
        self._clock = clock
        self._topic = topic
        self._client = client

    async def publish(
        self, message: str, partition: int, due_ms: int | None, acks: Acks
    ) -> int | None:
        """Publish once; return the offset, or None if nobody knows what became of it."""
        at = None
        if due_ms is not None:
            at = datetime.fromtimestamp(self._clock.wall_ms(due_ms) / 1_000, UTC)
        name = message.encode()
        try:
            receipt = await self._client.publish(
                self._topic, name, message_id=name, partition=partition, at=at, acks=acks
            )
        except WaterclockError as error:
            self._note("publish", error)
            return None
        return receipt.offset

    async def consume(self, group: str, member: str) -> None:
        """Take and acknowledge what a group is given, until cancelled."""
        while True:
            try:
                await self._subscribe(group, member)
            except WaterclockError as error:
                self._note("subscribe", error)
                await asyncio.sleep(AGAIN_S)

    async def _subscribe(self, group: str, member: str) -> None:
        async with self._client.subscribe(self._topic, group=group, member=member) as messages:
            async for message in messages:
                place = f"{self._topic}/{message.partition}"
                name = message.id.decode()
                at_ms = self._clock.now_ms()
                self._record.delivered.append(Delivered(group, place, message.offset, name, at_ms))
                message.ack()

    def _note(self, what: str, error: WaterclockError) -> None:
        self._record.counts[f"{what} {type(error).__name__}"] += 1
        self._record.counts[ERRORS] += 1
        self._tell(f"grpc {what}", f"{type(error).__name__} {error}")

    def log(self, said: str) -> None:
        """Note what the client says by itself."""
        self._tell("grpc client", said)

    def _tell(self, what: str, said: str) -> None:
        self._record.refusals.append(Refusal(self._clock.now_ms(), what, said))


@contextlib.asynccontextmanager
async def grpc_clients(
    record: RoundRecord, clock: RunClock, topic: str, nodes: Sequence[Node]
) -> AsyncIterator[GrpcClients]:
    """Be connected to the nodes while inside."""
    addresses = [f"{node.host}:{GRPC_PORT}" for node in nodes]
    async with waterclock.connect(addresses, SETTINGS) as client:
        clients = GrpcClients(record, clock, topic, client)
        with heard(clients.log):
            yield clients


class Hearing(logging.Handler):
    """Passes on what is logged."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())


@contextlib.contextmanager
def heard(hear: Callable[[str], None]) -> Iterator[None]:
    """Hear all that clients log while inside: what they do about errors by themselves."""
    log, handler = logging.getLogger("waterclock.client"), Hearing(hear)
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
