"""Messages one by one, for clients without Arrow: rows of a batch as protobuf, and back."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.v1 import broker_pb2 as pb


def from_proto(message: pb.Message) -> Message:
    """Return what a client sent; an empty id is none."""
    return Message(
        message.value if message.HasField("value") else None,
        key=message.key if message.HasField("key") else None,
        message_id=message.message_id or None,
        headers=dict(message.headers) or None,
        due_ms=Millis(message.due_ms) if message.HasField("due_ms") else None,
    )


def to_proto(message: Message) -> pb.Message:
    """Return a message for a client."""
    return pb.Message(
        message_id=message.message_id or b"",
        key=message.key,
        value=message.value,
        headers=message.headers or {},
        due_ms=message.due_ms,
    )


def rows_to_proto(rows: pa.RecordBatch) -> list[pb.Message]:
    """Return the rows of a batch in the schema of messages."""
    columns: Sequence[list[Any]] = [
        rows.column(name).to_pylist()
        for name in ("message_id", "key", "value", "headers", "due_ms")
    ]
    return [
        pb.Message(message_id=id_, key=key, value=value, headers=dict(headers or ()), due_ms=due_ms)
        for id_, key, value, headers, due_ms in zip(*columns, strict=True)
    ]
