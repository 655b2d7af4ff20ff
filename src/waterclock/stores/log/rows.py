"""How stored streams lie in a log: a row for each message, a row for each removal.

All streams share one log, and a frame holds what was stored in one turn. `docs/formats/streams.md`
draws every byte. A row's `message_id` is its stream's name and then its own id, so that equal ids
of two streams differ; a removal has no id of its own. Its `key` is the `Head`, 32 bytes.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.batch import Batch
from waterclock.log.schema import HEADERS, MESSAGES, binaries, encode
from waterclock.model.errors import ForeignFile, FrameDamaged
from waterclock.storage.partition_store import PartitionStore
from waterclock.stores.base import StoredMessage

Int64s = npt.NDArray[np.int64]

VERSION = 1
MESSAGE, REMOVAL = 1, 2
NEVER = -1

_LENGTH = struct.Struct("<H")
_HEAD = struct.Struct("<BB6xqqq")
_RANGE = struct.Struct("<qq")
_HEADS = np.dtype(
    {
        "names": ["version", "kind", "position", "stored_ms", "expires_ms"],
        "formats": ["u1", "u1", "<i8", "<i8", "<i8"],
        "offsets": [0, 1, 8, 16, 24],
        "itemsize": _HEAD.size,
    }
)


class Head(NamedTuple):
    """What a row says besides its id and its body."""

    kind: int
    position: int
    """Of the message; in a removal the last position of the stream."""
    stored_ms: int
    expires_ms: int
    """NEVER: it does not."""


class Row(NamedTuple):
    """A row to be written."""

    name: bytes
    message_id: bytes
    head: Head
    body: bytes


class Heads(NamedTuple):
    """What the rows of a frame say, by column."""

    kinds: list[int]
    positions: list[int]
    stored_ms: list[int]
    expires_ms: list[int]


def full_id(name: bytes, message_id: bytes) -> bytes:
    """Give the id of a row: unlike all of other streams."""
    return _LENGTH.pack(len(name)) + name + message_id


def split_id(full: bytes) -> tuple[bytes, bytes]:
    """Give the stream's name and the message's id."""
    end = 2 + _LENGTH.unpack_from(full)[0]
    return full[2:end], full[end:]


def encode_rows(rows: Sequence[Row]) -> Batch:
    """Build the batch to be appended."""
    nothing = pa.nulls(len(rows), pa.int64())
    columns = [
        binaries([full_id(row.name, row.message_id) for row in rows]),
        binaries([_HEAD.pack(VERSION, *row.head) for row in rows]),
        binaries([row.body for row in rows]),
        pa.nulls(len(rows), HEADERS),
        nothing,
    ]
    batch = pa.record_batch(columns, schema=MESSAGES)
    return Batch(encode(batch), batch, None)


def decode_heads(rows: pa.RecordBatch) -> Heads:
    """Read the heads of all rows of a frame; raise if they are not ours."""
    keys: pa.BinaryArray = rows.column("key")
    _, bounds, data = keys.buffers()
    ends = np.frombuffer(bounds, np.int32, len(keys) + 1, keys.offset * 4)
    if keys.null_count or not bool((np.diff(ends) == _HEAD.size).all()):
        raise FrameDamaged("a row of the streams' log has no head")
    heads = np.frombuffer(data, _HEADS, len(keys), int(ends[0]))
    if not bool((heads["version"] == VERSION).all()):
        raise ForeignFile("the streams' log is of a version this release does not read")
    return Heads(
        heads["kind"].tolist(),
        heads["position"].tolist(),
        heads["stored_ms"].tolist(),
        heads["expires_ms"].tolist(),
    )


def rows_of(rows: pa.RecordBatch) -> list[Row]:
    """Give the rows of a frame as they were written."""
    return [
        Row(*split_id(full), Head(*head), body)
        for full, body, *head in zip(
            rows.column("message_id").to_pylist(),
            rows.column("value").to_pylist(),
            *decode_heads(rows),
            strict=True,
        )
    ]


def encode_ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Build the body of a removal: which positions, as [start, end)."""
    return b"".join(_RANGE.pack(*found) for found in ranges)


def decode_ranges(body: bytes) -> list[tuple[int, int]]:
    """Read the body of a removal."""
    return [(start, end) for start, end in _RANGE.iter_unpack(body)]


def read_messages(
    log: PartitionStore, positions: Int64s, offsets: Int64s
) -> Iterator[StoredMessage]:
    """Read messages; a frame is read when its first message is asked for."""
    for _, batch, numbers, asks in log.reader.rows(offsets):
        # Mostly neighbours, which need no copy; and no row that nobody asked for is looked at.
        is_run = int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers)
        rows = batch.slice(int(numbers[0]), len(numbers)) if is_run else batch.take(numbers)
        heads = decode_heads(rows)
        for position, full, body, stored_ms, expires_ms in zip(
            positions[asks].tolist(),
            rows.column("message_id").to_pylist(),
            rows.column("value").to_pylist(),
            heads.stored_ms,
            heads.expires_ms,
            strict=True,
        ):
            _, message_id = split_id(full)
            yield StoredMessage(
                position,
                message_id.decode(),
                body,
                stored_ms,
                None if expires_ms == NEVER else expires_ms,
            )
