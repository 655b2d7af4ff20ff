"""Random histories of a partition log on a disk that fails, each checked against the model.

A Hypothesis state machine: append, fsync, fire, cancel, reschedule, roll, retain, compact, let time
pass or step, cut the power, kill the process, damage side-cars or bring stale ones back, rot bits,
fill the disk, fail an fsync or a write. After every opening the whole log is read back. It must
hold that every acknowledged row is there, byte for byte; that offsets are dense and never reused;
that dedup answers are exact; that a damaged side-car changes nothing; that damage is seen, not
served.
"""

import sys
from random import Random

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from waterclock.log.batch import encode_batch
from waterclock.log.frame import HEADER_BYTES, Frame
from waterclock.log.rows import row_offsets
from waterclock.log.schema import decode
from waterclock.log.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from waterclock.log.segment import SUFFIX
from waterclock.model.config import DedupConfig, LogConfig
from waterclock.model.errors import Damaged, StorageFailed, StorageFull
from waterclock.model.ids import Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.rewriting import Wanted, rewrites
from waterclock.storage.segment_file import SegmentFile
from waterclock.testing.clock import ManualClock
from waterclock.testing.disk import SimulatedFolder
from waterclock.testing.log_model import LogModel, Row

WINDOW_MS = 60_000
GRACE_MS = 30_000
ROT_FLIPS = 6
LOG_ID = bytes(range(16))

Draft = tuple[bytes, bytes | None, bytes | None, int | None]
"""Id, key, value and delay of a message to be."""

ids = st.sampled_from([b"a", b"b", b"c", b"dd", b"eee", b"f" * 16])
keys = st.sampled_from([None, b"k1", b"k2", b"k3"])
values = st.one_of(st.none(), st.binary(max_size=40), st.just(b"L" * 600))


def drafts(delays: st.SearchStrategy[int | None]) -> st.SearchStrategy[list[Draft]]:
    """Return batches of messages with these delays."""
    return st.lists(st.tuples(ids, keys, values, delays), min_size=1, max_size=5)


now_or_later = drafts(st.one_of(st.none(), st.integers(-1_000, 50_000)))
later = drafts(st.integers(1, 50_000))
seeds = st.integers(0, 1 << 32)


class LogHistories(RuleBasedStateMachine):
    """One partition, one owner, one disk."""

    folder: SimulatedFolder
    store: PartitionStore
    model: LogModel

    @initialize(policy=st.sampled_from(["group", "group", "always", "interval"]))
    def begin(self, policy: str) -> None:
        self.log = LogConfig(
            segment_bytes=4096,
            preallocate_bytes=1024,
            index_every_bytes=600,
            checkpoint_every_bytes=1500,
            fsync=policy,  # type: ignore[arg-type]
        )
        self.dedup = DedupConfig(window_ms=WINDOW_MS)
        self.clock = ManualClock()
        self.model = LogModel(WINDOW_MS)
        self.folder = SimulatedFolder()
        self._open()

    # Writing

    @rule(batches=st.lists(now_or_later, min_size=1, max_size=4), allow_duplicate=st.booleans())
    def append(self, batches: list[list[Draft]], allow_duplicate: bool) -> None:
        for batch in batches:
            self._append(self._messages(batch), allow_duplicate)

    @rule(batches=st.lists(later, min_size=1, max_size=3))
    def promise(self, batches: list[list[Draft]]) -> None:
        for batch in batches:
            self._append(self._messages(batch), True)

    def _messages(self, batch: list[Draft]) -> list[Message]:
        now = self.clock.now_ms()
        return [
            Message(v, key=k, message_id=i, due_ms=None if d is None else Millis(now + d))
            for i, k, v, d in batch
        ]

    def _append(self, batch: list[Message], allow_duplicate: bool) -> None:
        now = self.clock.now_ms()
        encoded = encode_batch(batch, Limits(), now_ms=now)
        known = self.model.expected(batch, now_ms=now, allow_duplicate=allow_duplicate)
        answer = self.store.append(encoded, now_ms=now, allow_duplicate=allow_duplicate)
        append_ms = self._last_append_ms() if answer.new_count else 0
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
                kind = "PROMISE" if is_later else "DATA"
                written[offset] = Row(
                    kind, message.message_id, message.key, message.value, message.due_ms,
                    append_ms, not allow_duplicate,
                )  # fmt: skip
        for offset in sorted(written):
            self.model.add(offset, written[offset])
        assert answer.durable_at == max(int(o) for o in answer.offsets) + 1 or answer.is_new is None
        self._acknowledge()

    def _last_append_ms(self) -> int:
        last = self.store.segments[-1].last
        assert last is not None
        return last.append_ms

    @rule(data=st.data(), count=st.integers(1, 3))
    def fire(self, data: st.DataObject, count: int) -> None:
        chosen = self._promises(data, count)
        if len(chosen):
            now = self.clock.now_ms()
            answer = self.store.fire(chosen, now_ms=now)
            for promise, offset in zip(chosen.tolist(), answer.offsets, strict=True):
                was = (self.model.rows | self.model.gone)[promise]
                fired = was._replace(kind="FIRED", is_tracked=False, promises=(promise,))
                self.model.add(offset, fired._replace(append_ms=self._last_append_ms()))
            self._acknowledge()

    @rule(data=st.data(), count=st.integers(1, 3))
    def cancel(self, data: st.DataObject, count: int) -> None:
        chosen = self._promises(data, count)
        if len(chosen):
            self.store.cancel(chosen, now_ms=self.clock.now_ms())
            self._control(Row("CANCEL", promises=tuple(chosen.tolist())))

    @rule(data=st.data(), delay=st.integers(0, 99_999))
    def reschedule(self, data: st.DataObject, delay: int) -> None:
        chosen = self._promises(data, 2)
        if len(chosen):
            due = np.full(len(chosen), self.clock.now_ms() + delay)
            self.store.reschedule(chosen, due, now_ms=self.clock.now_ms())
            row = Row("RESCHEDULE", promises=tuple(chosen.tolist()), new_due_ms=tuple(due.tolist()))
            self._control(row)

    def _control(self, row: Row) -> None:
        self.model.add(self.model.end, row._replace(append_ms=self._last_append_ms()))
        self._acknowledge()

    def _promises(self, data: st.DataObject, count: int) -> npt.NDArray[np.int64]:
        opened = sorted(self.model.open_promises())
        if not opened:
            return np.zeros(0, dtype=np.int64)
        several = st.lists(st.sampled_from(opened), min_size=1, max_size=count, unique=True)
        picked = data.draw(several)
        return np.array(picked, dtype=np.int64)

    # Flushing and time

    @rule(meanwhile=st.none() | now_or_later, seed=st.none() | seeds)
    def fsync(self, meanwhile: list[Draft] | None, seed: int | None) -> None:
        """One fsync, perhaps with an append while it runs, perhaps the last thing that works."""
        sync = self.store.begin_sync(self.clock.now_ms())
        if sync is None:
            return
        if meanwhile is not None:
            self.folder.on_sync = lambda _: self._append_once(meanwhile)
        try:
            sync.run()
        finally:
            self.folder.on_sync = None
        self.store.finish_sync(sync)
        self._acknowledge()
        if seed is not None:
            self.cut_the_power(seed)

    def _append_once(self, batch: list[Draft]) -> None:
        self.folder.on_sync = None
        self._append(self._messages(batch), False)

    @rule(ms=st.sampled_from([1, 100, 5_000, WINDOW_MS - 1, WINDOW_MS]), step=st.booleans())
    def let_time_pass(self, ms: int, step: bool) -> None:
        if step:
            self.clock.step(Random(ms).choice([-ms // 7, ms]))
        else:
            self.clock.advance(ms)

    @rule()
    def roll(self) -> None:
        self.store.roll(self.clock.now_ms())
        self._acknowledge()

    @rule()
    def run_jobs(self) -> None:
        self.store.run_jobs()

    # Retention and compaction

    @rule(data=st.data(), by_key=st.booleans(), cancel=st.booleans(), seed=st.none() | seeds)
    def roll_and_rewrite(
        self, data: st.DataObject, by_key: bool, cancel: bool, seed: int | None
    ) -> None:
        """Rewrite, perhaps right after a promise ended, perhaps right before the power goes."""
        self.roll()
        if cancel:
            self.cancel(data, 2)
        self.rewrite(data, by_key)
        if seed is not None:
            self.cut_the_power(seed)

    @rule(data=st.data(), by_key=st.booleans())
    def rewrite(self, data: st.DataObject, by_key: bool) -> None:
        keep_from = data.draw(st.sampled_from([s.base_offset for s in self.store.segments]))
        self._rewrite(Wanted(keep_from=keep_from, by_key=by_key, tombstone_grace_ms=GRACE_MS))

    def _rewrite(self, wanted: Wanted) -> None:
        closed_end = self.store.segments[-1].base_offset
        now = self.clock.now_ms()
        for job in rewrites(self.store, wanted, now_ms=now):
            job.run()
            job.finish()
        self._acknowledge()
        if wanted.by_key:
            self.model.compact_by_key(
                below=wanted.keep_from, closed_end=closed_end, tombstones_from_ms=now - GRACE_MS
            )
        else:
            self.model.release(wanted.keep_from)
        self._check()

    # Ends and beginnings

    @rule(seed=seeds)
    def cut_the_power(self, seed: int) -> None:
        self.folder = self.folder.crash(Random(seed).randrange)
        if self.log.fsync == "interval":
            self.model.acknowledged_end = self.store.flushed_end
        self._open()

    @rule()
    def kill_the_process(self) -> None:
        self._kill()
        self._open()
        assert self.store.end == self.model.end, "the page cache outlives the process"

    @rule()
    def stop_cleanly(self) -> None:
        self._close()
        self._open()
        assert self.store.end == self.model.end

    def _kill(self) -> None:
        self.folder.close()
        self.folder = self.folder.reopen()

    def _close(self) -> None:
        self.store.close()
        self.folder = self.folder.reopen()

    def _open(self) -> None:
        self.store = open_partition(
            self.folder,
            log=self.log,
            dedup=self.dedup,
            now_ms=self.clock.now_ms(),
            new_log_id=LOG_ID,
        )
        assert not self.store.faults, self.store.faults
        self.model.lose_tail(self.store.end)
        self._acknowledge()
        self._check()

    # Damage

    @rule(
        what=st.sampled_from(
            ["sidecar", "stale sidecars", "rot", "rot", "rot", "fsync", "write", "full"]
        ),
        seed=seeds,
    )
    def suffer(self, what: str, seed: int) -> None:
        random = Random(seed)
        match what:
            case "sidecar":
                self._damage_a_sidecar(random)
            case "stale sidecars":
                self._bring_stale_sidecars_back(random)
            case "rot":
                self._rot_a_bit(random)
            case "fsync":
                self._fail_an_fsync(random)
            case "write":
                self._fail_a_write(random.randrange(900))
            case _:
                self._fill_the_disk(random.randrange(2_000))

    def _damage_a_sidecar(self, random: Random) -> None:
        self._close()
        names = [n for n in self.folder.names() if n.endswith((".index", ".ids", ".due"))]
        if names:
            name = random.choice(names)
            file = self.folder.open(name)
            match random.randrange(3):
                case 0:
                    self.folder.flip(name, random.randrange(file.size()), random.randrange(8))
                case 1:
                    file.truncate(random.randrange(file.size()))
                case _:
                    self.folder.remove(name)
            file.close()
        self._open()

    def _bring_stale_sidecars_back(self, random: Random) -> None:
        """Put side-cars of before a rewrite back in their place, as a restored backup would."""
        self._append([Message(b"v" * random.randrange(600), message_id=b"stale")], True)
        self.roll()
        self._close()
        sidecars = [n for n in self.folder.names() if n.endswith((".index", ".ids", ".due"))]
        kept = {name: self._bytes_of(name) for name in sidecars}
        self._open()
        if random.random() < 0.5:
            self._rewrite(Wanted(keep_from=self.store.segments[-1].base_offset))
        self._append([Message(b"w" * random.randrange(600), message_id=b"stale")], True)
        self._kill()
        for name in set(kept) & set(self.folder.names()):
            self.folder.remove(name)
            file = self.folder.create(name)
            file.write(0, [kept[name]])
            file.close()
        self._open()

    def _rot_a_bit(self, random: Random) -> None:
        """Flip bits of what was promised: each must be seen; nothing is changed or served wrong."""
        places = [(s.file.name, p, z) for s in self.store.segments for p, z in _frame_places(s)]
        self._close()
        names = [n for n in self.folder.names() if n.endswith(SUFFIX)]
        before = {name: self._bytes_of(name) for name in names}
        for _ in range(ROT_FLIPS):
            name, start, size = random.choice(places)
            size = random.choice([size, min(size, HEADER_BYTES)])
            position, bit = start + random.randrange(size), random.randrange(8)
            self.folder.flip(name, position, bit)
            self._read_around(name)
            self._kill()
            assert len(self._bytes_of(name)) == len(before[name]), "a damaged file was cut"
            self.folder.flip(name, position, bit)
            assert {n: self._bytes_of(n) for n in names} == before, "a damaged file was changed"
        self._open()

    def _read_around(self, name: str) -> None:
        try:
            store = open_partition(
                self.folder,
                log=self.log,
                dedup=self.dedup,
                now_ms=self.clock.now_ms(),
                new_log_id=LOG_ID,
            )
            seen: set[int] = set()
            for segment in store.segments:
                offset = segment.base_offset
                for frame in store.frames(offset, segment.end_offset):
                    self._check_frame(frame, seen)
        except Damaged:
            return
        assert store.faults or seen >= set(self.model.rows), f"damage to {name} went unnoticed"

    def _fail_an_fsync(self, random: Random) -> None:
        self._append([Message(b"x", message_id=b"fsync")], True)
        sync = self.store.begin_sync(self.clock.now_ms())
        if sync is None:
            return
        self.folder.fail_next_sync(drop=random.random() < 0.7)
        try:
            sync.run()
        except StorageFailed as error:
            self.store.finish_sync(sync, error)
        self._expect_refusal()
        if random.random() < 0.7:
            self.kill_the_process()
        self.cut_the_power(random.randrange(1 << 32))

    def _fail_a_write(self, after: int) -> None:
        self.folder.fail_next_write(after_bytes=after)
        try:
            self._append([Message(b"x" * 50, message_id=b"w")], True)
        except StorageFailed:
            self._expect_refusal()
        self.kill_the_process()

    def _expect_refusal(self) -> None:
        end = self.store.end
        try:
            self._append([Message(b"y", message_id=b"z")], True)
        except StorageFailed:
            assert self.store.end == end
            return
        raise AssertionError("a store whose disk failed took an append")

    def _fill_the_disk(self, room: int) -> None:
        self.store.run_jobs()
        used = sum(len(self._bytes_of(name)) for name in self.folder.names() if name != "LOCK")
        self.folder.capacity_bytes = used + room
        try:
            for _ in range(3):
                self._append([Message(b"x" * 300, message_id=b"full")], True)
        except StorageFull:
            self._check()
        self.folder.capacity_bytes = None

    # Checking

    def _bytes_of(self, name: str) -> bytes:
        file = self.folder.open(name)
        data = bytes(file.view(0, file.size()))
        file.close()
        return data

    def _acknowledge(self) -> None:
        self.model.acknowledged_end = max(self.model.acknowledged_end, self.store.acknowledged_end)
        assert self.store.end == self.model.end

    def _check(self) -> None:
        seen: set[int] = set()
        end = self.store.start
        for frame in self.store.frames(self.store.start):
            assert frame.header.base_offset == end, "offsets are not dense"
            end = frame.header.end_offset
            self._check_frame(frame, seen)
        assert end == self.store.acknowledged_end
        missing = {o for o in self.model.rows if o < end} - seen
        assert not missing, f"rows {sorted(missing)} are not in the log"
        offsets, due = self.store.open_promises()
        assert dict(zip(offsets.tolist(), due.tolist(), strict=True)) == self.model.open_promises()

    def _check_frame(self, frame: Frame, seen: set[int]) -> None:
        header = frame.header
        assert header.epoch == 0
        assert header.flushed_end <= self.model.end
        if header.type.name in ("EPOCH", "NOOP", "SEEN"):
            return
        batch = decode(header, frame.body)
        known = self.model.rows | self.model.gone
        if header.type.name in ("CANCEL", "RESCHEDULE"):
            listed = set(batch.column("promise_offset").to_pylist())
            assert listed <= set(known[header.base_offset].promises)
            if listed == set(known[header.base_offset].promises):
                seen.add(header.base_offset)
            return
        for offset, row in zip(row_offsets(header, batch).tolist(), batch.to_pylist(), strict=True):
            expected = known[offset]
            found = (row["message_id"], row["key"], row["value"], row["due_ms"], header.type.name)
            assert found == (*expected[1:5], expected.kind), f"offset {offset} holds {found}"
            assert header.append_ms == expected.append_ms
            assert header.min_due_ms <= (row["due_ms"] or header.append_ms) <= header.max_due_ms
            if header.type.name == "FIRED":
                assert (row["promise_offset"],) == expected.promises
            seen.add(offset)

    def teardown(self) -> None:
        if hasattr(self, "store") and sys.exc_info()[0] is None:
            self.stop_cleanly()


def _frame_places(segment: SegmentFile) -> list[tuple[int, int]]:
    """Return position and size of the segment header and of each frame."""
    places = [(0, SEGMENT_HEADER_BYTES)]
    for frame in segment.frames(SEGMENT_HEADER_BYTES):
        position, size = places[-1]
        places.append((position + size, frame.header.size))
    return places
