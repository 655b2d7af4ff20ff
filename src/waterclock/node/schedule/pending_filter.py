"""Which pending messages are meant: by key, by headers, by due time, by partition.

All that is given must hold. Only a filter that looks at keys or headers needs the messages read;
it is asked of a whole frame's columns at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.log.arrays import as_numpy, filled
from waterclock.log.frame import OFFSET_MAX
from waterclock.log.schema import binary_scalar, text_scalar
from waterclock.model.errors import BadInput
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

READ_SLICE = 1_000
"""Messages that are read and looked at in one go, at most."""
READ_FRAMES = 50
"""Frames that are read in one go: one that holds one message takes as long as one of many, ..."""
READ_BYTES = 8 << 20
"""... and of a large one all is checked."""
SCAN_SLICE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What must hold of a message; nothing given holds of all."""

    key: bytes | None = None
    key_prefix: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    start_ms: int = 0
    end_ms: int = 0
    """Due in [start_ms, end_ms); 0: no end."""
    partitions: Sequence[int] = ()
    """None: all."""

    def __post_init__(self) -> None:
        if self.end_ms and self.end_ms <= self.start_ms:
            raise BadInput(f"filter.end_ms must be after start_ms (got {self.end_ms})")

    @property
    def is_empty(self) -> bool:
        """It holds of everything."""
        return self == Filter()

    @property
    def span(self) -> tuple[int, int]:
        """The due times it asks for, half-open."""
        return self.start_ms, self.end_ms or OFFSET_MAX

    @property
    def needs_rows(self) -> bool:
        """It looks at the messages themselves."""
        return self.key is not None or self.key_prefix is not None or bool(self.headers)

    @property
    def slice_rows(self) -> int:
        """How many messages to ask about at once, at most."""
        return READ_SLICE if self.needs_rows else SCAN_SLICE

    def hosts(self, topic: Topic) -> list[PartitionHost]:
        """Return the partitions it asks for, of those that are led here; those that cannot be read
        raise when they are used."""
        if not self.partitions:
            return topic.led
        asked = {topic.partition(number).partition for number in self.partitions}
        return [host for host in topic.led if host.partition in asked]

    def reach(self, store: PartitionStore, offsets: Int64s) -> int:
        """Return how many of these messages, by offset, to look at without letting the loop go."""
        if not self.needs_rows:
            return len(offsets)
        return store.reader.reach(offsets, frames_max=READ_FRAMES, bytes_max=READ_BYTES)

    def matches(self, store: PartitionStore, offsets: Int64s) -> Bools:
        """Tell which of these messages it holds of, due times aside."""
        found = np.ones(len(offsets), np.bool_)
        if not self.needs_rows:
            return found
        for _, batch, rows, asks in store.reader.rows(offsets):
            found[asks] = self._mask(batch)[rows]
        return found

    def _mask(self, batch: pa.RecordBatch) -> Bools:
        """Tell which rows of a frame it holds of."""
        keys = batch.column("key")
        mask = np.ones(len(batch), np.bool_)
        if self.key is not None:
            mask &= _bools(pc.equal(keys, binary_scalar(self.key)))
        if self.key_prefix is not None:
            mask &= _bools(pc.starts_with(keys, self.key_prefix))
        for name, value in self.headers.items():
            mask &= _has_header(batch.column("headers"), name, value)
        return mask


def _bools(column: pa.BooleanArray) -> Bools:
    """Return an answer in which nothing known means no."""
    return as_numpy(filled(column, False))


def _has_header(headers: pa.MapArray, name: str, value: bytes) -> Bools:
    mask = np.zeros(len(headers), np.bool_)
    if headers.null_count == len(headers):
        return mask
    is_pair = pc.and_(
        pc.equal(headers.keys, text_scalar(name)), pc.equal(headers.items, binary_scalar(value))
    )
    at = np.flatnonzero(_bools(is_pair))
    # Positions count from the start of the column's own buffer, also where the column is a slice.
    bounds = np.frombuffer(headers.buffers()[1], np.int32, len(headers) + 1, headers.offset * 4)
    rows = bounds.searchsorted(at, side="right") - 1
    mask[rows[(rows >= 0) & (rows < len(headers))]] = True
    return mask & _bools(headers.is_valid())
