"""A store on a simulated disk with the model beside it: each step is done to both and compared.

The steps of a history (`histories`) and its misfortunes (`log_faults`) are made of these.
"""

from random import Random

import numpy as np
import numpy.typing as npt

from tests.kit.clock import ManualClock
from tests.kit.disk import SimulatedFolder
from tests.kit.log_model import LogModel, Row
from waterclock.log.batch import encode_batch
from waterclock.log.frame import Frame
from waterclock.log.schema import decode, row_offsets
from waterclock.log.sidecars.endings import Ending
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.folders.folder import Folder
from waterclock.storage.folders.overlay import OverlayFolder
from waterclock.storage.opening import open_partition, open_unsettled
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewrite import Thinned, Wanted, rewrites

Int64s = npt.NDArray[np.int64]

WINDOW_MS = 60_000
LOG_ID = bytes(range(16))


class CheckedStore:
    """One partition, one owner, one disk, one oracle."""

    def __init__(self, log: LogConfig) -> None:
        self.log = log
        self.dedup = DedupConfig(window_ms=WINDOW_MS)
        self.clock = ManualClock()
        self.model = LogModel(WINDOW_MS)
        self.folder = SimulatedFolder()
        self.was_released = False
        self.thinned = Thinned()
        self._openings = 0
        self.store: PartitionStore
        self.open()

    # Writing

    def append(self, batch: list[Message], *, allow_duplicate: bool = False) -> None:
        """Publish a batch and compare what became of each message."""
        now = self.clock.now_ms()
        encoded = encode_batch(batch, Limits(), now_ms=now)
        known = self.model.expected(batch, now_ms=now, allow_duplicate=allow_duplicate)
        answer = self.store.append(encoded, now_ms=now, allow_duplicate=allow_duplicate)
        append_ms = self.last_append_ms() if answer.new_count else 0
        first: dict[bytes, int] = {}
        written: dict[int, Row] = {}
        for i, (message, repeats) in enumerate(zip(batch, known, strict=True)):
            offset = int(answer.offsets[i])
            is_new = answer.is_new is None or bool(answer.is_new[i])
            assert message.message_id is not None
            if not allow_duplicate:
                repeats = first.get(message.message_id) if repeats is None else repeats
                first.setdefault(message.message_id, offset)
            assert is_new == (repeats is None), f"row {i} of {batch}: known at {repeats}"
            assert repeats in (None, offset)
            if is_new:
                is_later = message.due_ms is not None and message.due_ms > now
                kind = "SCHEDULED" if is_later else "DATA"
                written[offset] = Row(
                    kind, message.message_id, message.key, message.value, message.due_ms,
                    append_ms, not allow_duplicate,
                )  # fmt: skip
        for offset in sorted(written):
            self.model.add(offset, written[offset])
        assert answer.durable_at == max(int(o) for o in answer.offsets) + 1 or answer.is_new is None
        self.acknowledge()

    def last_append_ms(self) -> int:
        """Return when the last frame was appended."""
        last = self.store.segments[-1].last
        assert last is not None
        return last.append_ms

    def fire(self, scheduled: Int64s) -> None:
        """Write scheduled messages again as deliverable."""
        answer = self.store.fire(scheduled, now_ms=self.clock.now_ms())
        for origin, offset in zip(scheduled.tolist(), answer.offsets, strict=True):
            was = (self.model.rows | self.model.gone)[origin]
            fired = was._replace(kind="FIRED", is_tracked=False, scheduled=(origin,))
            self.model.add(offset, fired._replace(append_ms=self.last_append_ms()))
        self.acknowledge()

    def cancel(self, scheduled: Int64s) -> None:
        """Write that scheduled messages will not fire."""
        self.store.cancel(scheduled, now_ms=self.clock.now_ms())
        self.control(Row("CANCEL", scheduled=tuple(scheduled.tolist())))

    def reschedule(self, scheduled: Int64s, due_ms: int) -> None:
        """Give scheduled messages another due time."""
        due = np.full(len(scheduled), due_ms)
        self.store.reschedule(scheduled, due, now_ms=self.clock.now_ms())
        listed = tuple(scheduled.tolist())
        self.control(Row("RESCHEDULE", scheduled=listed, new_due_ms=tuple(due.tolist())))

    def control(self, row: Row) -> None:
        """Note a control frame just written."""
        self.model.add(self.model.end, row._replace(append_ms=self.last_append_ms()))
        self.acknowledge()

    def roll(self) -> None:
        """Seal the active segment."""
        self.store.roll(self.clock.now_ms())
        self.acknowledge()

    def rewrite(self, wanted: Wanted) -> None:
        """Rewrite the closed segments, all the way."""
        closed_end = self.store.segments[-1].base_offset
        now = self.clock.now_ms()
        for job in rewrites(self.store, wanted, now_ms=now, thinned=self.thinned):
            job.run()
            job.finish()
        self.acknowledge()
        if wanted.by_key and not self.was_released:
            self.check_keys(now - wanted.tombstone_grace_ms)
        self.was_released |= not wanted.by_key
        if wanted.by_key:
            self.model.compact_by_key(
                below=wanted.keep_from,
                closed_end=closed_end,
                tombstones_from_ms=now - wanted.tombstone_grace_ms,
            )
        else:
            self.model.release(wanted.keep_from)
        self.check()

    def check_keys(self, tombstones_from_ms: int) -> None:
        """Compare the latest message of each key: what was deleted must not come back."""
        true: dict[bytes, int] = {}
        for offset, row in sorted((self.model.rows | self.model.gone).items()):
            if row.kind in ("DATA", "FIRED") and row.key is not None:
                true[row.key] = offset
        found: dict[bytes, int] = {}
        for frame in self.store.frames(self.store.start):
            if frame.header.is_deliverable:
                batch = decode(frame.header, frame.body)
                offsets = row_offsets(frame.header, batch).tolist()
                keys = batch.column("key").to_pylist()
                found |= {k: o for k, o in zip(keys, offsets, strict=True) if k is not None}
        known = self.model.rows | self.model.gone
        for key, offset in true.items():
            row = known[offset]
            is_spent = row.value is None and row.append_ms < tombstones_from_ms
            assert found.get(key) in ((offset, None) if is_spent else (offset,)), f"key {key!r}"

    # Ends and beginnings

    def cut_the_power(self, seed: int) -> None:
        """Lose what a power cut may take, by the dice of `seed`, and open what is left."""
        self.folder = self.folder.crash(Random(seed).randrange)
        if self.log.fsync == "interval":
            self.model.acknowledged_end = self.store.flushed_end
        end = self.look()
        self.open()
        assert self.store.end == end, "an opening finds something else than a look"

    def look(self) -> int:
        """Open the log without changing a byte of it; return the end an opening would find."""
        names = [name for name in self.folder.names() if name != "LOCK"]
        before = {name: self.bytes_of(name) for name in names}
        store = self.open_raw(OverlayFolder(self.folder))
        assert not store.faults, store.faults
        end = store.end
        store.close()
        self.folder = self.folder.reopen()
        assert {name: self.bytes_of(name) for name in names} == before, "a look changed a file"
        return end

    def kill_the_process(self) -> None:
        """Lose nothing but the process."""
        self.kill()
        self.open()
        assert self.store.end == self.model.end, "the page cache outlives the process"

    def stop_cleanly(self) -> None:
        """Close and open again."""
        self.close()
        self.open()
        assert self.store.end == self.model.end

    def kill(self) -> None:
        """End the process and leave the folder closed."""
        self.folder.close()
        self.folder = self.folder.reopen()

    def close(self) -> None:
        """Stop cleanly and leave the folder closed."""
        self.store.close()
        self.folder = self.folder.reopen()

    def open(self) -> None:
        """Open the folder, compare what is lost with what may be, and read everything."""
        self.store = self.open_raw()
        assert not self.store.faults, self.store.faults
        self.model.lose_tail(self.store.end)
        self.acknowledge()
        self.check()

    def open_raw(self, folder: Folder | None = None) -> PartitionStore:
        """Open the folder, or another one, as it is, whatever its state."""
        folder, now_ms = folder or self.folder, self.clock.now_ms()
        self._openings += 1
        if self._openings % 2:
            return open_partition(
                folder, log=self.log, dedup=self.dedup, now_ms=now_ms, new_log_id=LOG_ID
            )
        store, sync = open_unsettled(
            folder, log=self.log, dedup=self.dedup, now_ms=now_ms, new_log_id=LOG_ID
        )
        try:
            sync.run()
        except BaseException:
            folder.close()
            raise
        return store

    # Checking

    def bytes_of(self, name: str) -> bytes:
        """Return a file's content."""
        file = self.folder.open(name)
        data = bytes(file.view(0, file.size()))
        file.close()
        return data

    def acknowledge(self) -> None:
        """Hold the store to what it says may be acknowledged."""
        self.model.acknowledged_end = max(self.model.acknowledged_end, self.store.acknowledged_end)
        assert self.store.end == self.model.end

    def check(self) -> None:
        """Read the whole log and compare it with the model."""
        seen: set[int] = set()
        end = self.store.start
        for frame in self.store.frames(self.store.start):
            assert frame.header.base_offset == end, "offsets are not dense"
            end = frame.header.end_offset
            self.check_frame(frame, seen)
        assert end == self.store.acknowledged_end
        missing = {o for o in self.model.rows if o < end} - seen
        assert not missing, f"rows {sorted(missing)} are not in the log"
        offsets, due = self.store.open_scheduled()
        assert dict(zip(offsets.tolist(), due.tolist(), strict=True)) == self.model.open_scheduled()
        cancelled = np.array(self.model.cancelled(), np.int64)
        endings = self.store.endings(cancelled)
        assert (endings == Ending.CANCELLED).all(), f"{cancelled} ended as {endings}"

    def check_frame(self, frame: Frame, seen: set[int]) -> None:
        """Compare a frame with the model, byte for byte, and note its offsets as seen."""
        header = frame.header
        assert header.epoch == 0
        assert header.flushed_end <= self.model.end
        if header.type.name in ("EPOCH", "NOOP", "SEEN"):
            return
        batch = decode(header, frame.body)
        known = self.model.rows | self.model.gone
        if header.type.name in ("CANCEL", "RESCHEDULE"):
            listed = set(batch.column("scheduled_offset").to_pylist())
            assert listed <= set(known[header.base_offset].scheduled)
            if listed == set(known[header.base_offset].scheduled):
                seen.add(header.base_offset)
            return
        for offset, row in zip(row_offsets(header, batch).tolist(), batch.to_pylist(), strict=True):
            expected = known[offset]
            found = (row["message_id"], row["key"], row["value"], row["due_ms"], header.type.name)
            assert found == (*expected[1:5], expected.kind), f"offset {offset} holds {found}"
            assert header.append_ms == expected.append_ms
            assert header.min_due_ms <= (row["due_ms"] or header.append_ms) <= header.max_due_ms
            if header.type.name == "FIRED":
                assert (row["scheduled_offset"],) == expected.scheduled
            seen.add(offset)
