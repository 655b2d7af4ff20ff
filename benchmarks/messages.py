"""Batches as a producer sends them: Arrow bytes, made before the clock starts.

All batches of a producer are one template whose ids are written anew each time, so a million
messages take a fraction of a second. Ids have 16 bytes: the producer's own eight, then a counter.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.schema import HEADERS, MESSAGES, encode

ID_BYTES = 16
VALUE_BYTES = 128


class Producer:
    """Makes batches of equal size; no id is used twice, unless producers share a number."""

    def __init__(
        self,
        number: int,
        *,
        batch_messages: int,
        value_bytes: int = VALUE_BYTES,
        is_scheduled: bool = False,
    ) -> None:
        self.batch_messages = batch_messages
        self._next = 0
        rng = np.random.default_rng(number)
        marks = rng.integers(0, 1 << 63, 2 * batch_messages, dtype=np.uint64)
        dues = rng.integers(0, 1 << 62, batch_messages) if is_scheduled else None
        values = rng.bytes(batch_messages * value_bytes)
        self._body = bytearray(encode(_rows(batch_messages, marks, values, dues)))
        self._ids: npt.NDArray[np.uint64] = self._column(marks)
        self._ids[::2] = number
        self.dues_ms: npt.NDArray[np.int64] | None = None if dues is None else self._column(dues)
        """Of the next batches, if they are scheduled: write them here."""

    def _column(self, marks: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Find a column in the template by what was put there; give it for writing."""
        at = self._body.find(marks.tobytes())
        assert at >= 0, "a column is not found in the encoded batch"
        return np.frombuffer(self._body, marks.dtype, len(marks), at)

    @property
    def body_bytes(self) -> int:
        """Bytes of one batch."""
        return len(self._body)

    def bodies(self, count: int) -> list[bytes]:
        """Give the next batches, encoded."""
        made = []
        for _ in range(count):
            self._number_next()
            made.append(bytes(self._body))
        return made

    def ids(self, count: int) -> list[pa.BinaryArray]:
        """Give the ids alone of the next batches."""
        ends = _ends(self.batch_messages, ID_BYTES)
        made = []
        for _ in range(count):
            self._number_next()
            data = pa.py_buffer(self._ids.tobytes())
            made.append(pa.Array.from_buffers(pa.binary(), self.batch_messages, [None, ends, data]))
        return made

    def _number_next(self) -> None:
        """Write the next ids into the template."""
        end = self._next + self.batch_messages
        self._ids[1::2] = np.arange(self._next, end, dtype=np.uint64)
        self._next = end


def _rows(
    count: int,
    ids: npt.NDArray[np.uint64],
    values: bytes,
    dues: npt.NDArray[np.int64] | None,
) -> pa.RecordBatch:
    value_ends = _ends(count, len(values) // count)
    columns = [
        pa.Array.from_buffers(
            pa.binary(), count, [None, _ends(count, ID_BYTES), pa.py_buffer(ids.tobytes())]
        ),
        pa.nulls(count, pa.binary()),
        pa.Array.from_buffers(pa.binary(), count, [None, value_ends, pa.py_buffer(values)]),
        pa.nulls(count, HEADERS),
        pa.nulls(count, pa.int64()) if dues is None else pa.array(dues),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _ends(count: int, size: int) -> pa.Buffer:
    return pa.py_buffer((np.arange(count + 1) * size).astype(np.int32))
