"""Messages as they come out: light objects over the columns of the batch they came in.

A batch is decoded once, each column as a whole and only when the program reads it; a message is a
row number and a reference. Keeping one message keeps its batch in memory.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import overload

import pyarrow as pa

from waterclock.client.encryption import Keys
from waterclock.log.schema import MESSAGES, binaries
from waterclock.model.clock import time_of
from waterclock.model.errors import NodeFailed
from waterclock.v1 import broker_pb2

_ID, _KEY, _VALUE, _HEADERS, _DUE = range(5)


class MessageRows:
    """Messages of one partition, in the order of their offsets."""

    __slots__ = (
        "_decrypted", "_dues", "_headers", "_ids", "_keys", "_values", "append_ms",
        "append_times", "count", "crypto_keys", "offsets", "partition", "rows", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        bounds: Sequence[int],
        response: broker_pb2.Messages,
        *,
        offsets: Sequence[int] = (),
        append_times: Sequence[int] = (),
        crypto_keys: Keys | None = None,
    ) -> None:
        self.topic = topic
        self.crypto_keys = crypto_keys
        self.partition = partition
        self.offsets = offsets or offsets_of(bounds)
        self.rows = decoded(response.arrow)
        self.append_ms = response.append_ms
        self.append_times = append_times or tuple(response.append_times)
        """When each was stored, to be delivered. If it is empty, all were together."""
        self.count = len(self.offsets)
        if self.rows.num_rows != self.count:
            raise NodeFailed(f"{self.rows.num_rows} messages came for {self.count} offsets")
        self._ids: list[bytes] | None = None
        self._keys: list[bytes | None] | None = None
        self._values: Sequence[bytes | None] | None = None
        self._decrypted: pa.RecordBatch | None = None
        self._headers: list[list[tuple[str, bytes]] | None] | None = None
        self._dues: list[int | None] | None = None

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.partition}"
        return f"<{type(self).__name__} {self.count} messages of {place}>"

    def append_ms_of(self, row: int) -> int:
        """Return when a message was stored, to be delivered."""
        return self.append_times[row] if self.append_times else self.append_ms

    @property
    def ids(self) -> list[bytes]:
        if self._ids is None:
            self._ids = self.rows.column(_ID).to_pylist()
        return self._ids

    @property
    def keys(self) -> list[bytes | None]:
        if self._keys is None:
            self._keys = self.rows.column(_KEY).to_pylist()
        return self._keys

    @property
    def values(self) -> Sequence[bytes | None]:
        """The values, row by row; one that cannot be decrypted raises when it is asked for."""
        if self._values is None:
            self._values = self.rows.column(_VALUE).to_pylist()
            if self.crypto_keys is not None:
                self._values = DecryptedValues(self, self._values)
        return self._values

    @property
    def decrypted_rows(self) -> pa.RecordBatch:
        """The rows as a program reads them; raises CannotDecrypt if it may not read one."""
        if self.crypto_keys is None:
            return self.rows
        if self._decrypted is None:
            column = binaries(list(self.values))
            self._decrypted = self.rows.set_column(_VALUE, MESSAGES.field(_VALUE), column)
        return self._decrypted

    @property
    def headers(self) -> list[list[tuple[str, bytes]] | None]:
        if self._headers is None:
            self._headers = self.rows.column(_HEADERS).to_pylist()
        return self._headers

    @property
    def dues(self) -> list[int | None]:
        """The due times, row by row."""
        if self._dues is None:
            self._dues = self.rows.column(_DUE).to_pylist()
        return self._dues


class DecryptedValues(Sequence[bytes | None]):
    """Values that are decrypted one by one, so that a bad one does not keep others away."""

    def __init__(self, batch: MessageRows, stored: Sequence[bytes | None]) -> None:
        self._batch = batch
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, row: int) -> bytes | None: ...

    @overload
    def __getitem__(self, row: slice) -> list[bytes | None]: ...

    def __getitem__(self, row: int | slice) -> bytes | list[bytes | None] | None:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        batch = self._batch
        assert batch.crypto_keys is not None
        return batch.crypto_keys.decrypt(batch.topic, batch.keys[row], self._stored[row])


class LoggedMessage:
    """A message and its place in the log."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: MessageRows, row: int) -> None:
        self._batch = batch
        self._row = row

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.partition} offset {self.offset}"
        return f"<{type(self).__name__} {place}, id {self.id.hex()}>"

    @property
    def value(self) -> bytes | None:
        """The body; None is a tombstone. Raises CannotDecrypt if it is not for our keys."""
        return self._batch.values[self._row]

    @property
    def key(self) -> bytes | None:
        return self._batch.keys[self._row]

    @property
    def id(self) -> bytes:
        """The message id: the same at every delivery, so that repeats can be known."""
        return self._batch.ids[self._row]

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Small facts about the message."""
        return dict(self._batch.headers[self._row] or ())

    @property
    def due(self) -> datetime | None:
        """When it was due; None if it was published for now."""
        due_ms = self._batch.dues[self._row]
        return None if due_ms is None else time_of(due_ms)

    @property
    def offset(self) -> int:
        """Its position in the partition."""
        return self._batch.offsets[self._row]

    @property
    def partition(self) -> int:
        return self._batch.partition

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def appended(self) -> datetime:
        """When it was stored; one for later, when it became due and was delivered."""
        return time_of(self._batch.append_ms_of(self._row))


def offsets_of(bounds: Sequence[int]) -> Sequence[int]:
    """Return the offsets in half-open ranges, as one range if they are."""
    if len(bounds) == 2:
        return range(bounds[0], bounds[1])
    found: list[int] = []
    for start, end in zip(bounds[::2], bounds[1::2], strict=True):
        found.extend(range(start, end))
    return found


def decoded(arrow: bytes) -> pa.RecordBatch:
    """Return the messages in Arrow bytes from the node, without copying them."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(arrow), MESSAGES)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise NodeFailed(f"the node sent a batch that cannot be read: {error}") from error
