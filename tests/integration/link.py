"""The way to a node that comes and goes: callers wait for it to be there, and lose it mid-call."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from grpc import StatusCode
from grpc.aio import UsageError

from tests.kit.verdict import Findings
from waterclock.v1 import admin_pb2_grpc, broker_pb2_grpc, scheduler_pb2_grpc

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
EXPECTED = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED})
"""How calls may fail while nodes are killed and stopped under them."""
CLOSED = "Channel is closed."
"""What grpc says of a call on a channel that has been closed."""
BROKEN_PIPE = "Internal error from Core"
"""What grpc itself says, without asking anyone, of a write to a call that has just ended."""


SAY_S_MAX = 10.0


class Gone(Exception):
    """The link was closed under a call."""


@contextmanager
def hearing() -> Iterator[None]:
    """Talk inside: a call whose channel is closed says so by cancelling, as if we were meant. One
    that begins afterwards, by who has just heard the answer to the last, is a mistake to grpc."""
    try:
        yield
    except UsageError as error:
        if str(error) != CLOSED:
            raise
        raise Gone from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Gone from None


@asynccontextmanager
async def saying() -> AsyncIterator[None]:
    """Write to a stream inside. Of a channel that closes while the stream is being opened, gRPC
    tells nobody: the write would wait for ever."""
    try:
        with hearing():
            async with asyncio.timeout(SAY_S_MAX):
                yield
    except TimeoutError:
        raise Gone from None


class Link:
    """The stubs of the present run of a node."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._up = asyncio.Event()
        self._channel: grpc.aio.Channel | None = None
        self.broker: Any = None
        self.scheduler: Any = None
        self.admin: Any = None

    @property
    def is_up(self) -> bool:
        """There is a node, as far as is known."""
        return self._up.is_set()

    async def open(self, address: str) -> None:
        """Say that a node is there."""
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.broker = broker_pb2_grpc.BrokerStub(self._channel)
        self.scheduler = scheduler_pb2_grpc.SchedulerStub(self._channel)
        self.admin = admin_pb2_grpc.AdminStub(self._channel)
        self._up.set()

    async def close(self) -> None:
        """Say that it is gone; calls still under way fail."""
        self._up.clear()
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def up(self) -> None:
        """Wait until a node is there."""
        await self._up.wait()

    def failed(self, what: str, error: grpc.aio.AioRpcError | Gone) -> None:
        """Take note of a call that failed."""
        if isinstance(error, Gone):
            return
        if error.code() not in EXPECTED and error.details() != BROKEN_PIPE:
            self._findings.add("strange status", f"{what}: {error.code()} {error.details()}")
