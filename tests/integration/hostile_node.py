"""A node under hostile input, and a canary that must be served throughout."""

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import uvloop
from google.protobuf.descriptor import MethodDescriptor
from grpc import StatusCode
from grpc.aio import EOF, AioRpcError

from tests.integration.hostile_input import field_names, valid_arrow
from tests.integration.link import BROKEN_PIPE, OPTIONS
from tests.integration.members import offsets_of, rows_of
from tests.integration.node_process import NodeProcess
from tests.kit.node import HOST
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import admin_pb2_grpc, broker_pb2_grpc
from waterclock.v1 import broker_pb2 as pb

SETTINGS: dict[str, dict[str, Any]] = {
    # Small enough to be reached by inventing names; far from what the canary needs.
    "topics": {"topics_max": 24, "partitions_max": 96},
    "log": {"preallocate_bytes": 64 << 10},
    "groups": {"session_timeout_ms": 1_800_000, "members_max": 20},
    "limits": {"message_bytes_max": 1 << 20, "batch_bytes_max": 4 << 20},
}
CANARY = "canary"
CALL_S = 20.0
STREAM_S = 0.3
"""How long a stream that says nothing is listened to."""

DOCUMENTED = frozenset(
    {
        StatusCode.OK,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.OUT_OF_RANGE,
        StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""How a call to a node in good health may end: docs/api.md."""
OF_A_CLUSTER = frozenset({"DrainNode", "MovePartition", "ReplaceNode"})
"""Methods that a node alone does not have."""


def documented(method: MethodDescriptor) -> frozenset[StatusCode]:
    """Return how a call of a method may end."""
    is_refused = method.name in OF_A_CLUSTER
    return DOCUMENTED | {StatusCode.UNIMPLEMENTED} if is_refused else DOCUMENTED


class Outcome(NamedTuple):
    """How a call ended."""

    code: StatusCode
    details: str
    facts: dict[str, str]


UNHEARD = Outcome(StatusCode.OK, "", {})


class Usage(NamedTuple):
    """What the process has in use."""

    resident_mib: float
    open_files: int
    threads: int
    tasks: int


class HostileNode:
    """One node, one loop, one canary. Use as a context."""

    def __init__(self, folder: Path) -> None:
        self.node = NodeProcess(folder, SETTINGS)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._numbers = count()
        self.channel: Any = None
        self._canary: Any = None
        self._pid = 0

    def __enter__(self) -> "HostileNode":
        self._runner.__enter__()
        self.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._runner.__exit__(None, None, None)

    def run(self, work: Any) -> Any:
        """Run something in the loop."""
        return self._runner.run(work)

    async def _open(self) -> None:
        await self.node.start()
        self._pid = self.node.pid
        self.channel = grpc.aio.insecure_channel(self.node.address, options=OPTIONS)
        self.broker: Any = broker_pb2_grpc.BrokerStub(self.channel)
        self.admin: Any = admin_pb2_grpc.AdminStub(self.channel)
        await self.furnish()
        self._canary = self.broker.Subscribe()
        opening = pb.SubscribeRequest.Open(topic=CANARY, group="watch")
        await self._canary.write(pb.SubscribeRequest(open=opening))
        assert (await self._canary.read()).HasField("opened")
        await self.sing()

    async def _close(self) -> None:
        self._canary.cancel()
        await self.channel.close()
        if self.node.is_running:
            self.node.terminate()
            assert await self.node.ended() == 0, self.node.last_words()

    async def furnish(self) -> None:
        """Have something there to be hostile to."""
        for topic, partitions in (("hostile", 3), ("hostile-2", 1)):
            settings = ap.TopicSettings(partitions=partitions)
            await self.admin.CreateTopic(
                ap.CreateTopicRequest(topic=topic, settings=settings, if_absent=True)
            )
            await self.broker.PublishBatch(
                pb.PublishBatchRequest(topic=topic, arrow=valid_arrow(20))
            )

    # Calls

    async def call(self, method: MethodDescriptor, raw: bytes) -> Outcome:
        """Make a call with one request, whatever its bytes."""
        if method.server_streaming:
            return await self.talk(method, [raw], ending="close")
        try:
            await self.channel.unary_unary(_path(method))(raw, timeout=CALL_S)
        except AioRpcError as error:
            return _outcome(error)
        return Outcome(StatusCode.OK, "", {})

    async def talk(
        self, method: MethodDescriptor, raws: Sequence[bytes], *, ending: str
    ) -> Outcome:
        """Say all of it over a stream, and end it: `close`, `cancel`, or just `wait` a while."""
        call = self.channel.stream_stream(_path(method))(timeout=CALL_S)
        try:
            for raw in raws:
                try:
                    await call.write(raw)
                except asyncio.InvalidStateError:
                    break
            if ending == "close":
                await call.done_writing()
            elif ending == "cancel":
                await asyncio.sleep(0.005)
                return UNHEARD
            async with asyncio.timeout(CALL_S if ending == "close" else STREAM_S):
                while await call.read() is not EOF:
                    pass
            return Outcome(await call.code(), await call.details(), {})
        except AioRpcError as error:
            if error.details() == BROKEN_PIPE:
                return UNHEARD  # it ended while we wrote; how, nobody tells any more
            return _outcome(error)
        except TimeoutError:
            return UNHEARD
        finally:
            call.cancel()

    # The canary

    async def sing(self) -> None:
        """Publish a message, get it, ack it."""
        value = b"%d" % next(self._numbers)
        message = pb.Message(value=value)
        async with asyncio.timeout(CALL_S):
            await self.broker.Publish(pb.PublishRequest(topic=CANARY, message=message))
            while True:
                event = await self._canary.read()
                assert event is not EOF, await self._canary.details()
                if event.HasField("delivery"):
                    break
        delivery = event.delivery
        assert [row[1] for row in rows_of(delivery.messages)] == [value]
        assert len(list(offsets_of(delivery.bounds))) == 1
        answer = pb.Answer(
            partition=delivery.partition, generation=delivery.generation, bounds=delivery.bounds
        )
        await self._canary.write(pb.SubscribeRequest(answers=[answer]))

    def check_well(self) -> None:
        """Fail if the node has restarted, or met something it did not plan for."""
        assert self.node.is_running, self.node.last_words()
        assert self.node.pid == self._pid
        assert self.node.bugs() == [], self.node.last_words(60)

    async def usage(self) -> Usage:
        """Return what the node has in use now."""
        node = self.node
        return Usage(
            node.resident_kib() / 1024, node.open_files(), node.threads(), await node.tasks()
        )

    # HTTP and plain bytes

    async def send_bytes(self, port: int, *pieces: bytes, is_rude: bool = False) -> bytes:
        """Send bytes to a port; return what comes back until it closes or goes quiet."""
        reader, writer = await asyncio.open_connection(HOST, port)
        got = b""
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if is_rude:
                writer.transport.abort()
                return got
            async with asyncio.timeout(STREAM_S):
                while part := await reader.read(65_536):
                    got += part
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()
        return got


def check_outcome(method: MethodDescriptor, outcome: Outcome, said: object) -> None:
    """Fail unless the status is one of those documented, and a refusal names its field."""
    assert outcome.code in documented(method), (method.full_name, outcome, said)
    if outcome.code is StatusCode.INVALID_ARGUMENT and "waterclock-field" not in outcome.facts:
        words = outcome.details.lower().replace("_", " ")
        named = {name.replace("_", " ") for name in field_names(method.input_type)}
        assert any(name in words for name in named), (method.full_name, outcome)


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _outcome(error: AioRpcError) -> Outcome:
    facts = {str(name): str(value) for name, value in error.trailing_metadata() or ()}
    return Outcome(error.code(), error.details() or "", facts)
