"""Batches as a producer sends them: Arrow bytes, made before the clock starts.

All batches of a producer are one template whose ids are written anew each time, so a million
messages take a fraction of a second. Ids have 16 bytes: the producer's own eight, then a counter.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.schema import HEADERS, MESSAGES, encode

ID_BYTES = 16
VALUE_BYTES = 128


class Producer:
    """Makes batches of equal size; no id is used twice, unless producers share a number."""

    def __init__(self, number: int, *, batch_messages: int, value_bytes: int = VALUE_BYTES) -> None:
        self.batch_messages = batch_messages
        self._next = 0
        rng = np.random.default_rng(number)
        marks = rng.integers(0, 1 << 63, 2 * batch_messages, dtype=np.uint64)
        values = rng.bytes(batch_messages * value_bytes)
        self._body = bytearray(encode(_rows(batch_messages, marks, values)))
        at = self._body.find(marks.tobytes())
        assert at >= 0, "the ids are not found in the encoded batch"
        self._ids: npt.NDArray[np.uint64] = np.frombuffer(
            self._body, np.uint64, 2 * batch_messages, at
        )
        self._ids[::2] = number

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


def _rows(count: int, ids: npt.NDArray[np.uint64], values: bytes) -> pa.RecordBatch:
    value_ends = _ends(count, len(values) // count)
    columns = [
        pa.Array.from_buffers(
            pa.binary(), count, [None, _ends(count, ID_BYTES), pa.py_buffer(ids.tobytes())]
        ),
        pa.nulls(count, pa.binary()),
        pa.Array.from_buffers(pa.binary(), count, [None, value_ends, pa.py_buffer(values)]),
        pa.nulls(count, HEADERS),
        pa.nulls(count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _ends(count: int, size: int) -> pa.Buffer:
    return pa.py_buffer((np.arange(count + 1) * size).astype(np.int32))
