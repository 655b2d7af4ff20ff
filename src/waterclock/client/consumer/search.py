"""Messages of one key, which a node looks for in a partition from an offset on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc

from waterclock.client.connection import Connection
from waterclock.client.consumer.rows import LoggedMessage, MessageRows
from waterclock.model.errors import NodeFailed
from waterclock.v1 import broker_pb2

Finished = broker_pb2.ReplayResponse.Finished


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The messages of a key among those that one call looked at."""

    messages: Sequence[LoggedMessage]
    looked_at: int
    next_offset: int
    """Where another call goes on."""
    is_at_end: bool
    """That is where the partition ended when the node began to look."""


async def found_messages(
    connection: Connection, request: broker_pb2.FindMessagesRequest
) -> FoundMessages:
    """Have the node look for messages of a key; what breaks off is begun again."""

    async def ask(request: broker_pb2.FindMessagesRequest, **how: Any) -> FoundMessages:  # noqa: ANN401 - as gRPC has it
        call: Any = connection.broker.FindMessages(request, **how)
        messages: list[LoggedMessage] = []
        finished: Finished | None = None
        try:
            while isinstance(answer := await call.read(), broker_pb2.ReplayResponse):
                if answer.WhichOneof("event") == "finished":
                    finished = answer.finished
                else:
                    rows = _rows(connection, request.topic, answer.batch)
                    messages += (LoggedMessage(rows, row) for row in range(rows.count))
        finally:
            call.cancel()
        if finished is None:
            raise NodeFailed(f"{connection.address} did not say how far it has looked")
        return FoundMessages(messages, finished.looked_at, finished.next_offset, finished.is_at_end)

    connection.want_link(connection.native)
    method = cast(
        "grpc.aio.UnaryUnaryMultiCallable[broker_pb2.FindMessagesRequest, FoundMessages]", ask
    )
    return await connection.call(method, request)


def _rows(
    connection: Connection, topic: str, batch: broker_pb2.ReplayResponse.Batch
) -> MessageRows:
    return MessageRows(
        topic,
        batch.partition,
        batch.bounds,
        batch.messages,
        offsets=batch.offsets,
        append_times=batch.append_ms,
        crypto_keys=connection.keys,
    )
