"""A partition under test: one store, its disk and its clock; each thing done to them is one line.

Also the tools to look at a folder's bytes from outside and to build a folder from bytes, so that a
test can damage files behind the store's back and prove that the store changed none.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from tests.kit.clock import ManualClock
from tests.kit.disk import Choose, SimulatedFolder, lose_all
from waterclock.log.append import Appended
from waterclock.log.batch import Batch, encode_batch
from waterclock.log.frame import HEADER_BYTES, Frame, FrameHeader, decode_header
from waterclock.log.schema import decode, row_offsets
from waterclock.log.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from waterclock.log.segment import segment_name
from waterclock.model.errors import FrameDamaged
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.units import GIB, KIB, MIB
from waterclock.storage.folders.folder import Folder
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Wanted, rewrites

LOG_ID = bytes(range(16))
FIRST = segment_name(0)
WINDOW_MS = 60_000
LOG = LogConfig(
    segment_bytes=1 * MIB,
    preallocate_bytes=1 * KIB,
    index_every_bytes=256,
    checkpoint_every_bytes=1 * GIB,
)
"""Segments end where the test says, and checkpoints are taken only by rolling and closing."""
DEDUP = DedupConfig(window_ms=WINDOW_MS)
SIDECARS = (".index", ".ids", ".due")


class Stored(NamedTuple):
    """A message as it was read back."""

    kind: str
    message_id: bytes
    key: bytes | None
    value: bytes | None
    due_ms: int | None


def message(
    number: int, *, due_ms: int | None = None, value: bytes | None = None, key: bytes | None = None
) -> Message:
    """Return a message unlike those of other numbers."""
    body = b"value %d" % number if value is None else value
    due = None if due_ms is None else Millis(due_ms)
    return Message(body, key=key, message_id=b"id-%d" % number, due_ms=due)


def batch_of(messages: Sequence[Message], now_ms: int) -> Batch:
    """Encode messages under the default limits."""
    return encode_batch(messages, Limits(), now_ms=now_ms)


def offsets(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return offsets, or times, as the store wants them."""
    return np.array(values, dtype=np.int64)


def open_store(
    folder: Folder, *, log: LogConfig = LOG, dedup: DedupConfig = DEDUP, now_ms: int = 1_000
) -> PartitionStore:
    """Open what is in a folder."""
    return open_partition(folder, log=log, dedup=dedup, now_ms=now_ms, new_log_id=LOG_ID)


class Partition:
    """One store on a simulated disk, with a clock turned by hand."""

    def __init__(
        self,
        folder: SimulatedFolder | None = None,
        *,
        dedup: DedupConfig = DEDUP,
        **log: object,
    ) -> None:
        self.folder = SimulatedFolder() if folder is None else folder
        self.log = replace(LOG, **log)  # type: ignore[arg-type]
        self.dedup = dedup
        self.clock = ManualClock()
        self.store = self._opened()

    def _opened(self) -> PartitionStore:
        now = self.clock.now_ms()
        return open_store(self.folder, log=self.log, dedup=self.dedup, now_ms=now)

    # Writing

    def append(self, *messages: Message, allow_duplicate: bool = False) -> Appended:
        """Append without flushing."""
        now = self.clock.now_ms()
        batch = batch_of(messages, now)
        return self.store.append(batch, now_ms=now, allow_duplicate=allow_duplicate)

    def publish(self, *messages: Message, allow_duplicate: bool = False) -> Appended:
        """Append and flush."""
        answer = self.append(*messages, allow_duplicate=allow_duplicate)
        self.flush()
        return answer

    def fill(self, numbers: Iterable[int], *, roll: bool = False) -> None:
        """Publish one message a frame, each flushed before the next."""
        for number in numbers:
            self.publish(message(number))
        if roll:
            self.roll()

    def flush(self) -> None:
        """Run one fsync, if one is due."""
        sync = self.store.begin_sync(self.clock.now_ms())
        if sync is not None:
            sync.run()
            self.store.finish_sync(sync)

    def roll(self) -> None:
        """Seal the active segment and save its side-cars."""
        self.store.roll(self.clock.now_ms())
        self.store.run_jobs()

    def rewrite(self, *, keep_from: int, **wanted: object) -> int:
        """Rewrite the closed segments; return the bytes freed."""
        freed = 0
        what = replace(Wanted(keep_from=keep_from), **wanted)  # type: ignore[arg-type]
        for job in rewrites(self.store, what, now_ms=self.clock.now_ms()):
            job.run()
            job.finish()
            freed += job.freed_bytes
        return freed

    # Ends and beginnings

    def close(self) -> None:
        """Stop cleanly; the folder is ready for the next opening."""
        self.store.close()
        self.folder = self.folder.reopen()

    def kill(self) -> None:
        """End the process without a word; the page cache stays."""
        self.folder.close()
        self.folder = self.folder.reopen()

    def cut_power(self, choose: Choose = lose_all) -> None:
        """End the machine; what was not synced goes, as `choose` decides."""
        self.folder = self.folder.crash(choose)

    def open(self) -> PartitionStore:
        """Open again what is on the disk."""
        self.store = self._opened()
        return self.store

    def restart(self) -> PartitionStore:
        """Stop cleanly and open again."""
        self.close()
        return self.open()

    # Looking

    def rows(self) -> dict[int, Stored]:
        """Read everything that can be read."""
        return rows_of(self.store)[0]

    def values(self) -> list[bytes | None]:
        """Return the values of all deliverable messages, in log order."""
        rows = sorted(self.rows().items())
        return [row.value for _, row in rows if row.kind in ("DATA", "FIRED")]

    def scheduled(self) -> dict[int, int]:
        """Return offset and due time of each open scheduled message."""
        found, due = self.store.open_scheduled()
        return dict(zip(found.tolist(), due.tolist(), strict=True))

    def files(self) -> dict[str, bytes]:
        """Return the bytes of every file but the lock."""
        return files_of(self.folder)


def stored(frame: Frame) -> dict[int, Stored]:
    """Return the messages of a frame by their offsets."""
    header = frame.header
    if header.type.name not in ("DATA", "SCHEDULED", "FIRED"):
        return {}
    batch = decode(header, frame.body)
    rows = zip(row_offsets(header, batch).tolist(), batch.to_pylist(), strict=True)
    return {
        offset: Stored(header.type.name, row["message_id"], row["key"], row["value"], row["due_ms"])
        for offset, row in rows
    }


def rows_of(store: PartitionStore) -> tuple[dict[int, Stored], set[int]]:
    """Read a log around its damage; return its messages, and the offsets that were refused."""
    found: dict[int, Stored] = {}
    refused: set[int] = set()
    stuck_at: int | None = None
    offset: int = store.start
    while offset < store.acknowledged_end:
        try:
            for frame in store.frames(offset):
                found |= stored(frame)
                offset = frame.header.end_offset
        except FrameDamaged:
            assert store.faults, f"damage at offset {offset} was met and not noted"
            # Damage behind an offset takes none: reading goes on right there, once.
            ends = [fault.end for fault in store.faults if fault.start <= offset <= fault.end]
            behind = max([*ends, offset + (offset == stuck_at)])
            refused |= set(range(offset, behind))
            stuck_at = offset
            offset = behind
    for fault in store.faults:
        refused |= set(range(fault.start, fault.end))
    return found, refused


def files_of(folder: SimulatedFolder) -> dict[str, bytes]:
    """Return the bytes of every file but the lock, by a handle of its own."""
    other = folder.reopen()
    found: dict[str, bytes] = {}
    for name in other.names():
        if name != "LOCK":
            file = other.open(name)
            found[name] = bytes(file.view(0, file.size()))
    other.close()
    return found


def disk_of(files: dict[str, bytes]) -> SimulatedFolder:
    """Return a disk that holds these files, durably."""
    folder = SimulatedFolder()
    for name, data in files.items():
        file = folder.create(name)
        file.write(0, [data])
        file.sync()
        file.close()
    folder.sync()
    return folder


def places(segment: bytes) -> list[tuple[int, FrameHeader]]:
    """Return position and header of each frame in a segment's bytes."""
    found: list[tuple[int, FrameHeader]] = []
    position = SEGMENT_HEADER_BYTES
    while position + HEADER_BYTES <= len(segment) and any(segment[position : position + 4]):
        header = decode_header(segment, position)
        found.append((position, header))
        position += header.size
    return found


def flipped(data: bytes, position: int) -> bytes:
    """Return bytes with one bit of one of them changed."""
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


def resigned(
    data: bytes, position: int, *, version: int = 1, kind: int = 1, flags: int = 0
) -> bytes:
    """Return a segment in which one frame header claims this, under a checksum that holds."""
    fields = bytearray(data[position : position + HEADER_BYTES - 4])
    struct.pack_into("<BBH", fields, 4, version, kind, flags)
    header = bytes(fields) + struct.pack("<I", crc32c(fields))
    return data[:position] + header + data[position + HEADER_BYTES :]
