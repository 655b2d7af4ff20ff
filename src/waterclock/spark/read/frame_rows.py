"""Frames become the record batches that Spark takes, a batch at a time and never a row.

Small frames are put together, since Spark pays for each batch: their bodies are copied once, and
what the log does not store for each row (partition, offset, times) is made for the whole batch.
Large frames pass as they lie in the reply.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.log.frame import FrameHeader, FrameType, check_body, decode_header
from waterclock.log.schema import MESSAGES, row_offsets, schema_of
from waterclock.model.errors import FrameDamaged
from waterclock.model.units import MIB
from waterclock.spark.read.ranges import Range
from waterclock.spark.schemas import TIMESTAMP

BATCH_BYTES_MAX = 16 * MIB
"""Frames are put together up to this, whatever their rows."""
US_PER_MS = 1_000

_KINDS = {FrameType.DATA: "data", FrameType.SCHEDULED: "scheduled", FrameType.FIRED: "fired"}
_STORED = {"message_id", "key", "value", "headers"}
"""Columns that are in the log as they are in Spark."""

Int64s = npt.NDArray[np.int64]
Decrypt = Callable[[list[bytes | None], list[bytes | None]], list[bytes | None]]
"""Of keys and values of messages, return what the values were."""


class _Piece(NamedTuple):
    """Some rows of one frame."""

    header: FrameHeader
    rows: pa.RecordBatch
    offsets: Int64s | None
    """None: they follow each other, from `first_offset` on."""
    first_offset: int

    def slice(self, start: int, count: int) -> "_Piece":
        offsets = None if self.offsets is None else self.offsets[start : start + count]
        rows = self.rows.slice(start, count)
        return _Piece(self.header, rows, offsets, self.first_offset + start)

    def row_offsets(self) -> Int64s:
        if self.offsets is not None:
            return self.offsets
        return np.arange(self.first_offset, self.first_offset + self.rows.num_rows, dtype=np.int64)


class FrameRows:
    """The rows of one range, in the columns that were asked for."""

    def __init__(
        self,
        schema: pa.Schema,
        wanted: Range,
        *,
        with_scheduled: bool,
        key_prefix: bytes | None,
        batch_rows: int,
        decrypt: Decrypt | None = None,
    ) -> None:
        self._decrypt = decrypt
        self._schema = schema
        self._wanted = wanted
        self._batch_rows = batch_rows
        self._key_prefix = key_prefix
        self._types = {FrameType.DATA, FrameType.FIRED}
        if with_scheduled:
            self._types.add(FrameType.SCHEDULED)
        self._columns_read = _columns_read(schema.names, by_key=key_prefix is not None)
        self._no_times = pa.nulls(batch_rows, TIMESTAMP)

    def __repr__(self) -> str:
        wanted = self._wanted
        return f"<FrameRows of {wanted.partition} [{wanted.start}, {wanted.end})>"

    def batches(self, replies: Iterable[memoryview]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of replies, each of whole frames, in order."""
        pending: list[_Piece] = []
        rows = size = 0
        for piece in self._pieces(replies):
            count, piece_bytes = piece.rows.num_rows, piece.header.body_len
            is_over = rows + count > self._batch_rows or size + piece_bytes > BATCH_BYTES_MAX
            if pending and is_over:
                yield self._batch(pending)
                pending, rows, size = [], 0, 0
            start = 0
            while count - start > self._batch_rows:
                yield self._batch([piece.slice(start, self._batch_rows)])
                start += self._batch_rows
            pending.append(piece.slice(start, count - start) if start else piece)
            rows += count - start
            size += piece_bytes
        if pending:
            yield self._batch(pending)

    def _pieces(self, replies: Iterable[memoryview]) -> Iterator[_Piece]:
        """Yield the rows that were asked for, frame by frame."""
        for reply in replies:
            position = 0
            while position < len(reply):
                header = decode_header(reply, position)
                if header.type in self._types:
                    body = check_body(header, reply, position)
                    piece = self._selected(self._within(header, self._decoded(header, body)))
                    if piece.rows.num_rows:
                        yield piece
                position += header.size

    def _decoded(self, header: FrameHeader, body: memoryview) -> pa.RecordBatch:
        schema = schema_of(header.type, header.flags)
        if not header.is_sparse:
            # Arrow reads as many columns as the schema has; the offsets of a sparse one stand last.
            schema = _PREFIXES[self._columns_read]
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise FrameDamaged(f"frame at offset {header.base_offset}: {error}") from error
        if rows.num_rows != header.rows:
            raise FrameDamaged(
                f"frame at offset {header.base_offset} has {rows.num_rows} rows, not {header.rows}"
            )
        return rows

    def _within(self, header: FrameHeader, rows: pa.RecordBatch) -> _Piece:
        """Return the rows of a frame that are in the range."""
        first, wanted = header.base_offset, self._wanted
        if header.is_sparse:
            offsets = row_offsets(header, rows)
            start, end = map(int, np.searchsorted(offsets, [wanted.start, wanted.end]))
            return _Piece(header, rows, offsets, 0).slice(start, end - start)
        piece = _Piece(header, rows, None, first)
        if wanted.start <= first and header.end_offset <= wanted.end:
            return piece
        start = max(wanted.start - first, 0)
        return piece.slice(start, max(min(wanted.end, header.end_offset) - first - start, 0))

    def _selected(self, piece: _Piece) -> _Piece:
        """Return the rows whose key begins as asked for."""
        if self._key_prefix is None:
            return piece
        mask = pc.starts_with(piece.rows.column("key"), pattern=self._key_prefix)
        mask = mask.fill_null(False)
        offsets = piece.row_offsets()[mask.to_numpy(zero_copy_only=False)]
        return _Piece(piece.header, piece.rows.filter(mask), offsets, 0)

    def _batch(self, pieces: list[_Piece]) -> pa.RecordBatch:
        """Return the rows of some frames as one batch."""
        counts = [piece.rows.num_rows for piece in pieces]
        columns = [self._column(name, pieces, counts) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, pieces: list[_Piece], counts: list[int]) -> pa.Array:
        if name == "value" and self._decrypt is not None:
            return _decrypted(pieces, self._decrypt)
        if name in _STORED:
            return _joined([piece.rows.column(name) for piece in pieces])
        match name:
            case "partition":
                return pa.array(np.full(sum(counts), self._wanted.partition, dtype=np.int32))
            case "offset":
                return pa.array(np.concatenate([piece.row_offsets() for piece in pieces]))
            case "append_time":
                return _times(np.repeat([piece.header.append_ms for piece in pieces], counts))
            case "due_time":
                return self._due_times(_joined([piece.rows.column("due_ms") for piece in pieces]))
            case "fire_time":
                return self._fire_times(pieces, counts)
            case "value_bytes":
                return _joined([pc.binary_length(piece.rows.column("value")) for piece in pieces])
            case _:
                assert name == "kind"
                kinds = [_KINDS[piece.header.type] for piece in pieces]
                return _joined(list(map(pa.repeat, kinds, counts)))

    def _due_times(self, due_ms: pa.Array) -> pa.Array:
        if due_ms.null_count == len(due_ms):
            return self._no_times.slice(0, len(due_ms))
        return pc.multiply(due_ms, US_PER_MS).view(TIMESTAMP)

    def _fire_times(self, pieces: list[_Piece], counts: list[int]) -> pa.Array:
        fired = [piece.header.type is FrameType.FIRED for piece in pieces]
        if not any(fired):
            return self._no_times.slice(0, sum(counts))
        times = np.repeat([piece.header.append_ms for piece in pieces], counts)
        return _times(times, absent=~np.repeat(fired, counts))


def _decrypted(pieces: list[_Piece], decrypt: "Decrypt") -> pa.Array:
    keys = _joined([piece.rows.column("key") for piece in pieces])
    values = _joined([piece.rows.column("value") for piece in pieces])
    return pa.array(decrypt(keys.to_pylist(), values.to_pylist()), values.type)


def _times(times_ms: Int64s, absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(times_ms * US_PER_MS, pa.int64(), mask=absent).view(TIMESTAMP)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _columns_read(names: Iterable[str], *, by_key: bool) -> int:
    """Return how many of the log's columns are needed, from the first on."""
    stored = {"due_time": "due_ms", "value_bytes": "value"}
    needed = {stored.get(name, name) for name in names} | ({"key"} if by_key else set())
    return max((MESSAGES.names.index(name) + 1 for name in needed & set(MESSAGES.names)), default=1)


_PREFIXES = [pa.schema(list(MESSAGES)[:count]) for count in range(len(MESSAGES) + 1)]
