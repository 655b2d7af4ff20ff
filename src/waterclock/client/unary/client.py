"""The client of commands that ask once and are gone: quick to load, and without a loop.

It has what `Client` has, by the same code, but for what goes on: subscriptions, replays, publishing
in batches. Its coroutines never suspend; run them by `finished`.
"""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from waterclock.client.producer.checks import checked_headers
from waterclock.client.results import Receipt
from waterclock.client.settings import ClientSettings
from waterclock.client.target import Given
from waterclock.client.unary.connection import UnaryConnection
from waterclock.model.errors import BadInput
from waterclock.model.ids import UUID7_ENTROPY_BYTES, uuid7
from waterclock.model.message import ACKS, Acks, check_acks
from waterclock.v1 import broker_pb2

if TYPE_CHECKING:
    from waterclock.client.admin import DeadLetters, Groups, JobRuns, Replays, Topics
    from waterclock.client.cluster import Cluster
    from waterclock.client.due import When
    from waterclock.client.schedule import SchedulerCalls
    from waterclock.client.streams.calls import StreamCalls
    from waterclock.client.streams.streams import Streams


class UnaryClient:
    """A connection to a node; use it in a `with` block."""

    def __init__(
        self, address: Given | None = None, settings: ClientSettings | None = None
    ) -> None:
        self._connection = UnaryConnection(address, settings or ClientSettings())

    def __repr__(self) -> str:
        return f"<UnaryClient of {self._connection.address}>"

    def __enter__(self) -> "UnaryClient":
        self._node = self._connection.open()
        return self

    def __exit__(self, *_: object) -> None:
        if "_stream_calls" in vars(self):
            self._stream_calls.close()
        self._connection.close()

    # Each part is loaded when it is used: a publish needs none of them.

    @cached_property
    def topics(self) -> "Topics":
        """Create, change and look at topics."""
        from waterclock.client.admin import Topics

        return Topics(self._connection)

    @cached_property
    def groups(self) -> "Groups":
        """Look at groups, move them, delete them."""
        from waterclock.client.admin import Groups

        return Groups(self._connection)

    @cached_property
    def dead_letters(self) -> "DeadLetters":
        """Look at the messages that failed, publish them again, or let them go."""
        from waterclock.client.admin import DeadLetters

        return DeadLetters(self._connection)

    @cached_property
    def replays(self) -> "Replays":
        """Look at named replays and delete them."""
        from waterclock.client.admin import Replays

        return Replays(self._connection)

    @cached_property
    def job_runs(self) -> "JobRuns":
        """Look at the last runs of jobs."""
        from waterclock.client.admin import JobRuns

        return JobRuns(self._connection)

    @cached_property
    def schedule(self) -> "SchedulerCalls":
        """Look after messages for later."""
        from waterclock.client.schedule import SchedulerCalls

        calls = SchedulerCalls()
        calls._connection = self._connection
        return calls

    @cached_property
    def streams(self) -> "Streams":
        """Send to streams, receive from them, look after them."""
        from waterclock.client.streams.streams import Streams

        return Streams(self._stream_calls)

    @cached_property
    def cluster(self) -> "Cluster":
        """Look at the nodes of a cluster."""
        from waterclock.client.cluster import Cluster

        return Cluster(self._stream_calls)

    @cached_property
    def _stream_calls(self) -> "StreamCalls":
        from waterclock.client.streams.calls import StreamCalls
        from waterclock.model.protobuf import from_proto
        from waterclock.model.views import NodeInfo

        calls = StreamCalls(self._connection, None)
        calls.meet(from_proto(self._node, NodeInfo))
        return calls

    def now_ms(self) -> int:
        """Return the time by the node's clock."""
        return self._connection.now_ms()

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        due_ms: int | None = None,
        message_id: bytes | None = None,
        expires: "When | None" = None,
        partition: int | None = None,
        acks: Acks = "quorum",
    ) -> Receipt:
        """Publish a message, now or for later; it is durable on return.

        It is tried again, also at another node, under the same id: it is stored once.
        """
        if message_id == b"":
            raise BadInput("message_id must not be empty")
        check_acks(acks)
        now_ms = self._connection.now_ms()
        if message_id is None:
            message_id = uuid7(now_ms, os.urandom(UUID7_ENTROPY_BYTES))
        until_ms = None
        if expires is not None:
            from waterclock.client.due import instant_ms

            until_ms = instant_ms(expires, max(now_ms, due_ms or 0), field="expires")
        request = broker_pb2.PublishRequest(
            topic=topic,
            message=broker_pb2.Message(
                message_id=message_id,
                key=key,
                value=value,
                headers=None if headers is None else dict(checked_headers(headers)),
                due_ms=due_ms,
            ),
            partition=partition,
            expires_ms=until_ms,
            acks=broker_pb2.Acks.ValueType(ACKS.index(acks)),
        )
        done = await self._connection.call_safely(self._connection.broker.Publish, request)
        receipt = Receipt(topic, done.partition, done.offset, done.message_id, done.is_new)
        receipt.made_partitions = done.made_partitions
        return receipt
