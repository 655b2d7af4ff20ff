"""A segment that scheduled messages pin is written anew only when a good part of what was left may
go."""

import pytest

from tests.storage.stores import WINDOW_MS, Partition, message, offsets
from waterclock.log.segment import HEADER_BYTES
from waterclock.model.ids import Offset
from waterclock.model.sections import DedupConfig
from waterclock.storage.jobs import SaveJob
from waterclock.storage.rewrite import Pass, Thinned, Wanted, rewrites

FAR_MS = 1_000_000
NO_IDS = DedupConfig(enabled=False)


class Retention:
    """Passes over one partition that remember each other."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.thinned = Thinned()

    def __call__(self, *, by_key: bool = False) -> list[str]:
        """Run a pass in which all closed segments have had their time; return what was fsynced."""
        partition = self.partition
        partition.flush()
        touched: list[str] = []
        partition.folder.on_sync = touched.append
        wanted = Wanted(keep_from=partition.store.segments[-1].base_offset, by_key=by_key)
        now = partition.clock.now_ms()
        for job in rewrites(partition.store, wanted, now_ms=now, thinned=self.thinned):
            job.run()
            job.finish()
        partition.folder.on_sync = None
        return touched

    @property
    def segments(self) -> list[int]:
        return [segment.base_offset for segment in self.partition.store.segments]


def pinned(dedup: DedupConfig = NO_IDS) -> Partition:
    """Return a log of two segments with a message and eight scheduled messages each, and one to
    append to."""
    partition = Partition(dedup=dedup)
    due = partition.clock.now_ms() + FAR_MS
    for start in (0, 9):
        partition.publish(message(start))
        partition.publish(*[message(start + i, due_ms=due) for i in range(1, 9)])
        partition.roll()
    partition.publish(message(18))
    return partition


def kinds(partition: Partition, base: int) -> list[str]:
    segment = next(s for s in partition.store.segments if s.base_offset == base)
    return [frame.header.type.name for frame in segment.frames(HEADER_BYTES)]


def test_what_scheduled_messages_pin_is_written_once_and_then_left_alone():
    partition = pinned()
    retain = Retention(partition)

    assert retain() != []
    assert retain() == []
    assert len(partition.scheduled()) == 16


def test_it_is_written_anew_once_a_good_part_of_the_scheduled_messages_has_ended():
    partition = pinned()
    retain = Retention(partition)
    retain()

    partition.store.cancel(offsets(1), now_ms=partition.clock.now_ms())
    one_of_eight = retain()
    partition.store.cancel(offsets(2), now_ms=partition.clock.now_ms())
    two_of_eight = retain()

    assert one_of_eight == []
    assert any(name.startswith("0" * 20) for name in two_of_eight)
    assert not any(name.startswith("0" * 19 + "9") for name in two_of_eight)
    assert retain() == []
    assert sorted(partition.restart().open_scheduled()[0]) == [*range(3, 9), *range(10, 18)]


def test_the_end_of_the_last_scheduled_message_frees_the_segment():
    partition = pinned()
    retain = Retention(partition)
    retain()

    partition.store.cancel(offsets(*range(1, 9)), now_ms=partition.clock.now_ms())
    retain()

    assert retain.segments == [9, 18]


def test_a_word_about_a_scheduled_message_goes_once_the_scheduled_message_is_gone():
    partition = pinned()
    now = partition.clock.now_ms()
    retain = Retention(partition)
    retain()
    partition.store.cancel(offsets(1), now_ms=now)
    partition.roll()
    partition.publish(message(30))

    retain()
    needed = kinds(partition, 18)
    quiet = retain()
    partition.store.cancel(offsets(2), now_ms=now)
    retain()

    assert needed == ["NOOP", "CANCEL"]
    assert quiet == []
    assert kinds(partition, 18) == ["NOOP"]
    assert sorted(partition.restart().open_scheduled()[0]) == [*range(3, 9), *range(10, 18)]


def test_ids_that_need_no_longer_be_remembered_go_all_at_once():
    partition = Partition()
    partition.fill(range(3), roll=True)
    partition.publish(message(3))
    retain = Retention(partition)

    retain()
    quiet = retain()
    partition.clock.advance(WINDOW_MS + 1)
    partition.publish(message(4))
    retain()

    assert quiet == []
    assert retain.segments == [3]


def test_a_pass_by_key_takes_no_account_of_it():
    partition = pinned()
    retain = Retention(partition)
    retain()

    assert retain(by_key=True) != []
    assert retain() == []


def test_only_a_job_about_the_same_segment_is_waited_for(monkeypatch):
    partition = pinned()
    saved: list[int] = []
    real = SaveJob.run

    def run(job: SaveJob) -> None:
        saved.append(job.base_offset)
        real(job)

    monkeypatch.setattr(SaveJob, "run", run)
    partition.store.roll(partition.clock.now_ms())
    wanted = Wanted(keep_from=Offset(18))
    for job in rewrites(partition.store, wanted, now_ms=partition.clock.now_ms()):
        job.run()
        job.finish()
    others = saved.copy()
    Retention(partition)()

    assert others == []
    assert saved == [18]


def test_what_ends_after_a_pass_began_is_none_of_its_business():
    partition = pinned()
    partition.store.cancel(offsets(1), now_ms=partition.clock.now_ms())
    retention = Pass(partition.store, Wanted(keep_from=Offset(18)), now_ms=0)
    before = partition.store.end
    partition.store.cancel(offsets(2), now_ms=partition.clock.now_ms())

    jobs = retention.jobs()
    job = next(jobs)
    job.run()
    job.finish()

    assert retention.end == before
    assert 1 not in partition.rows()
    assert 2 in partition.rows()


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_pass_makes_durable_what_it_counts_on_unless_it_is(is_flushed):
    partition = pinned()
    partition.store.cancel(offsets(1), now_ms=partition.clock.now_ms())
    retention = Pass(partition.store, Wanted(keep_from=Offset(18)), now_ms=0)
    if is_flushed:
        partition.flush()
    touched: list[str] = []
    partition.folder.on_sync = touched.append

    next(retention.jobs())

    assert len(touched) == (0 if is_flushed else 1)
    assert partition.store.flushed_end >= retention.end
