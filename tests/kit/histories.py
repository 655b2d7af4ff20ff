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
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.kit.async_fsyncs import SimulatedKernel
from tests.kit.checked_store import WINDOW_MS, CheckedStore, Int64s
from tests.kit.log_faults import LogFaults
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import Fsync, LogConfig
from waterclock.storage.rewrite import Wanted

GRACE_MS = 30_000

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

    on: CheckedStore

    @initialize(policy=st.sampled_from(["group", "group", "always", "interval"]))
    def begin(self, policy: Fsync) -> None:
        self.kernel = SimulatedKernel()
        self.on = CheckedStore(
            LogConfig(
                segment_bytes=4096,
                preallocate_bytes=1024,
                index_every_bytes=600,
                checkpoint_every_bytes=1500,
                fsync=policy,
            )
        )

    # Writing

    @rule(batches=st.lists(now_or_later, min_size=1, max_size=4), allow_duplicate=st.booleans())
    def append(self, batches: list[list[Draft]], allow_duplicate: bool) -> None:
        for batch in batches:
            self.on.append(self._messages(batch), allow_duplicate=allow_duplicate)

    @rule(batches=st.lists(later, min_size=1, max_size=3))
    def scheduled(self, batches: list[list[Draft]]) -> None:
        for batch in batches:
            self.on.append(self._messages(batch), allow_duplicate=True)

    def _messages(self, batch: list[Draft]) -> list[Message]:
        now = self.on.clock.now_ms()
        return [
            Message(v, key=k, message_id=i, due_ms=None if d is None else Millis(now + d))
            for i, k, v, d in batch
        ]

    @rule(data=st.data(), count=st.integers(1, 3))
    def fire(self, data: st.DataObject, count: int) -> None:
        chosen = self._scheduled(data, count)
        if len(chosen):
            self.on.fire(chosen)

    @rule(data=st.data(), count=st.integers(1, 3))
    def cancel(self, data: st.DataObject, count: int) -> None:
        chosen = self._scheduled(data, count)
        if len(chosen):
            self.on.cancel(chosen)

    @rule(data=st.data(), delay=st.integers(0, 99_999))
    def reschedule(self, data: st.DataObject, delay: int) -> None:
        chosen = self._scheduled(data, 2)
        if len(chosen):
            self.on.reschedule(chosen, self.on.clock.now_ms() + delay)

    def _scheduled(self, data: st.DataObject, count: int) -> Int64s:
        opened = sorted(self.on.model.open_scheduled())
        if not opened:
            return np.zeros(0, dtype=np.int64)
        several = st.lists(st.sampled_from(opened), min_size=1, max_size=count, unique=True)
        return np.array(data.draw(several), dtype=np.int64)

    # Flushing and time

    @rule(meanwhile=st.none() | now_or_later, seed=st.none() | seeds)
    def fsync(self, meanwhile: list[Draft] | None, seed: int | None) -> None:
        """One fsync, perhaps with an append while it runs, perhaps the last thing that works."""
        sync = self.on.store.begin_sync(self.on.clock.now_ms())
        if sync is None:
            return
        if meanwhile is not None:
            self.on.folder.on_sync = lambda _: self._append_once(meanwhile)
        try:
            sync.run()
        finally:
            self.on.folder.on_sync = None
        self.on.store.finish_sync(sync)
        self.on.acknowledge()
        if seed is not None:
            self.on.cut_the_power(seed)

    @rule()
    def have_the_kernel_begin_an_fsync(self) -> None:
        """It ends some steps later, when somebody waits for it, or never."""
        sync = self.on.store.begin_sync(self.on.clock.now_ms())
        if sync is not None:
            assert sync.begin(self.kernel) is not None

    @rule(waits=st.booleans(), seed=st.none() | seeds)
    def take_in_what_the_kernel_ran(self, waits: bool, seed: int | None) -> None:
        """Hear of an fsync, perhaps by waiting for it, perhaps the last thing that works."""
        if not waits:
            self.kernel.end_all()
        sync = self.on.store.in_flight
        if sync is None:
            return
        sync.run()
        self.on.store.finish_sync(sync)
        self.on.acknowledge()
        if seed is not None:
            self.on.cut_the_power(seed)

    def _append_once(self, batch: list[Draft]) -> None:
        self.on.folder.on_sync = None
        self.on.append(self._messages(batch))

    @rule(ms=st.sampled_from([1, 100, 5_000, WINDOW_MS - 1, WINDOW_MS]), step=st.booleans())
    def let_time_pass(self, ms: int, step: bool) -> None:
        if step:
            self.on.clock.step(Random(ms).choice([-ms // 7, ms]))
        else:
            self.on.clock.advance(ms)

    @rule()
    def roll(self) -> None:
        self.on.roll()

    @rule()
    def run_jobs(self) -> None:
        self.on.store.run_jobs()

    # Retention and compaction

    @rule(data=st.data(), by_key=st.booleans(), cancel=st.booleans(), seed=st.none() | seeds)
    def roll_and_rewrite(
        self, data: st.DataObject, by_key: bool, cancel: bool, seed: int | None
    ) -> None:
        """Rewrite, perhaps right after a scheduled message ended, perhaps right before the power
        goes."""
        self.on.roll()
        if cancel:
            self.cancel(data, 2)
        self.rewrite(data, by_key)
        if seed is not None:
            self.on.cut_the_power(seed)

    @rule(data=st.data(), by_key=st.booleans())
    def rewrite(self, data: st.DataObject, by_key: bool) -> None:
        keep_from = data.draw(st.sampled_from([s.base_offset for s in self.on.store.segments]))
        self.on.rewrite(Wanted(keep_from=keep_from, by_key=by_key, tombstone_grace_ms=GRACE_MS))

    # Ends, beginnings and misfortunes

    @rule(seed=seeds)
    def cut_the_power(self, seed: int) -> None:
        self.on.cut_the_power(seed)

    @rule()
    def kill_the_process(self) -> None:
        self.on.kill_the_process()

    @rule()
    def stop_cleanly(self) -> None:
        self.on.stop_cleanly()

    @rule(
        what=st.sampled_from(["sidecar", "stale", "rot", "rot", "rot", "fsync", "write", "full"]),
        seed=seeds,
    )
    def suffer(self, what: str, seed: int) -> None:
        random = Random(seed)
        faults = LogFaults(self.on)
        match what:
            case "sidecar":
                faults.damage_a_sidecar(random)
            case "stale":
                faults.bring_stale_sidecars_back(random)
            case "rot":
                faults.rot_a_bit(random)
            case "fsync":
                faults.fail_an_fsync(random)
            case "write":
                faults.fail_a_write(random.randrange(900))
            case _:
                faults.fill_the_disk(random.randrange(2_000))

    def teardown(self) -> None:
        if hasattr(self, "on") and sys.exc_info()[0] is None:
            self.on.stop_cleanly()
