"""Group commit with real threads: it acknowledges what is durable, and failures reach the owner.

Threads meet at gates, never by sleeping: the simulated disk stops inside an fsync until the test
lets it go on.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.clock import ManualClock
from tests.storage.stores import (
    DEDUP,
    FIRST,
    LOG,
    SIDECARS,
    Partition,
    batch_of,
    message,
    open_store,
)
from waterclock.model.errors import Closed, StorageFailed
from waterclock.model.sections import LogConfig
from waterclock.storage import fsyncs
from waterclock.storage.flush import SWITCH_INTERVAL_S, GroupCommit
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.jobs import SaveJob

GRACE_S = 30
"""Longer than anything takes: reached only by a thread that waits for ever."""


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


class Gate:
    """Stops whoever syncs a file with one of these endings, until it is opened."""

    def __init__(self, partition: Partition, ending: str) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._ending = ending
        partition.folder.on_sync = self._pass

    def _pass(self, name: str) -> None:
        if name.endswith(self._ending) and not self._open.is_set():
            self.reached.set()
            assert self._open.wait(GRACE_S), "the gate was never opened"

    def await_arrival(self) -> None:
        assert self.reached.wait(GRACE_S), "nobody came"

    def open(self) -> None:
        self._open.set()


def committed(partition: Partition, on_done: Callable[[], None] = lambda: None) -> GroupCommit:
    return GroupCommit(partition.store, partition.clock, on_done=on_done)


def test_what_is_acknowledged_survives_a_power_cut_at_any_moment():
    partition = Partition(checkpoint_every_bytes=2_000, segment_bytes=8_192)
    commit = committed(partition)

    for number in range(60):
        answer = partition.append(message(number, value=b"v" * 50))
        if number % 3 == 0:
            commit.wait_for(answer.durable_at)
        commit.step()
        acknowledged = partition.store.acknowledged_end
        survivor = open_store(partition.folder.crash(), log=LOG)
        assert survivor.end >= acknowledged
        assert not survivor.faults
    commit.close()


def test_appends_during_one_slow_fsync_share_the_next():
    partition = Partition()
    syncs = partition.folder.counters.syncs
    gate = Gate(partition, FIRST)
    commit = committed(partition)
    partition.append(message(0))
    commit.step()
    gate.await_arrival()

    for number in range(1, 31):
        partition.append(message(number))
        commit.step()
    acknowledged = partition.store.acknowledged_end
    gate.open()
    commit.wait_for(31)

    assert acknowledged == 0
    assert partition.store.acknowledged_end == 31
    assert partition.folder.counters.syncs == syncs + 2
    commit.close()


def test_the_owner_is_woken_when_an_fsync_is_through():
    partition = Partition()
    woken = threading.Event()
    commit = committed(partition, woken.set)
    partition.append(message(0))
    commit.step()

    assert woken.wait(GRACE_S)
    commit.step()

    assert partition.store.acknowledged_end == 1
    commit.close()


def test_an_interval_is_measured_on_the_clock_that_never_steps():
    partition = Partition(fsync="interval", fsync_interval_ms=100)
    woken = threading.Event()
    commit = committed(partition, woken.set)
    partition.clock.advance(100)
    partition.append(message(0))
    commit.step()
    assert woken.wait(GRACE_S)
    commit.step()
    woken.clear()

    partition.clock.step(-3_600_000)
    partition.append(message(1))
    partition.clock.advance(100)
    commit.step()

    assert woken.wait(1), "no fsync until the wall clock has caught up"
    commit.step()
    assert partition.store.flushed_end == 2
    commit.close()


# Failures


def test_a_failed_fsync_reaches_the_owner_every_time_and_nothing_is_acknowledged():
    partition = Partition()
    commit = committed(partition)
    commit.wait_for(partition.append(message(0)).durable_at)
    partition.folder.fail_next_sync()
    answer = partition.append(message(1))

    for _ in range(2):
        with pytest.raises(StorageFailed):
            commit.wait_for(answer.durable_at)
    with pytest.raises(StorageFailed):
        commit.step()
    with pytest.raises(StorageFailed):
        partition.append(message(2))

    assert partition.store.acknowledged_end == 1
    assert partition.values() == [b"value 0"]
    commit.close()
    with pytest.raises(Closed):
        partition.append(message(2))


def test_a_failure_nobody_has_seen_is_raised_by_close_and_the_folder_is_free():
    partition = Partition()
    commit = committed(partition)
    partition.folder.fail_next_sync()
    partition.append(message(0))
    commit.step()

    with pytest.raises(StorageFailed):
        commit.close()

    partition.folder = partition.folder.reopen()
    partition.open()
    assert partition.values() == [b"value 0"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), Closed("too late")])
def test_a_thread_that_fails_in_an_unforeseen_way_does_not_leave_the_owner_waiting(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sync: object) -> None:
        raise error

    monkeypatch.setattr(fsyncs.Sync, "run", fail)
    partition = Partition()
    commit = committed(partition)
    answer = partition.append(message(0))

    with pytest.raises(StorageFailed, match=str(error)):
        commit.wait_for(answer.durable_at)
    commit.close()


def test_a_failed_job_reaches_the_owner():
    def fail(name: str) -> None:
        if name.endswith(".tmp"):
            raise StorageFailed("no side-car today")

    partition = Partition(checkpoint_every_bytes=1)
    partition.folder.on_sync = fail
    done = threading.Semaphore(0)
    commit = committed(partition, done.release)
    commit.wait_for(partition.append(message(0)).durable_at)

    assert done.acquire(timeout=GRACE_S), "the fsync"
    assert done.acquire(timeout=GRACE_S), "the job"
    with pytest.raises(StorageFailed, match="no side-car today"):
        commit.step()


# Jobs


def test_appends_and_fsyncs_go_on_while_side_cars_are_saved():
    partition = Partition(checkpoint_every_bytes=1)
    gate = Gate(partition, ".index.tmp")
    commit = committed(partition)
    commit.wait_for(partition.append(message(0)).durable_at)
    commit.step()
    gate.await_arrival()

    commit.wait_for(partition.append(message(1)).durable_at)

    assert partition.store.acknowledged_end == 2
    assert FIRST.replace("seg", "index") not in partition.files()
    gate.open()
    commit.close()
    assert FIRST.replace("seg", "index") in partition.files()


def test_a_rewrite_waits_for_the_job_that_is_running_aside(monkeypatch):
    partition = Partition()
    partition.fill(range(3))
    gate = Gate(partition, ".index.tmp")
    commit = committed(partition)
    partition.store.roll(partition.clock.now_ms())
    commit.step()
    gate.await_arrival()
    save = SaveJob.run

    def run(job: SaveJob) -> None:
        if threading.current_thread() is threading.main_thread():
            gate.open()
        save(job)

    monkeypatch.setattr(SaveJob, "run", run)
    partition.rewrite(keep_from=3)
    answer = partition.append(message(0), message(9))
    commit.wait_for(answer.durable_at)
    commit.close()

    assert list(answer.offsets) == [0, 3]
    partition.folder = partition.folder.reopen()
    assert partition.open().end == 4


def test_a_segment_rewritten_while_its_fsync_waits_its_turn_is_durable_already():
    partition = Partition()
    partition.append(message(0))
    sync = partition.store.begin_sync(partition.clock.now_ms())
    assert sync is not None
    partition.roll()
    partition.rewrite(keep_from=1)

    sync.run()
    partition.store.finish_sync(sync)

    assert partition.publish(message(1)).durable_at == partition.store.acknowledged_end == 2


# Ending


def test_close_makes_everything_durable_and_saves_what_the_next_opening_needs():
    partition = Partition()
    commit = committed(partition)
    for number in range(5):
        partition.append(message(number))
    commit.step()
    partition.append(message(5))

    commit.close()
    partition.cut_power()

    assert {FIRST.replace(".seg", ending) for ending in SIDECARS} < partition.files().keys()
    partition.open()
    assert len(partition.values()) == 6


@pytest.mark.parametrize("policy", ["group", "always", "interval"])
def test_it_works_on_a_real_folder(tmp_path: Path, policy: str) -> None:
    log: LogConfig = replace(LOG, fsync=policy, segment_bytes=8_192, checkpoint_every_bytes=2_048)  # type: ignore[arg-type]
    store = open_store(OsFolder(tmp_path / "log"), log=log, dedup=DEDUP)
    commit = GroupCommit(store, ManualClock())

    for number in range(100):
        answer = store.append(batch_of([message(number)], 1_000), now_ms=1_000)
        if number % 7 == 0:
            commit.wait_for(answer.durable_at)
            assert store.read(int(answer.offsets[0]))
        commit.step()
    commit.close()

    store = open_store(OsFolder(tmp_path / "log"), log=log)
    assert (store.start, store.end, store.faults) == (0, 100, [])
    assert len(store.segments) > 3
    assert sum(frame.header.rows for frame in store.frames(0)) == 100
    store.close()


def test_the_interpreter_is_told_to_let_the_threads_run():
    sys.setswitchinterval(0.005)
    partition = Partition()
    committed(partition).close()

    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
