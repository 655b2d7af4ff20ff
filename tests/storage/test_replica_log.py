"""A replica takes the frames of its leader as they are and knows all that the leader knows."""

from random import Random

import pytest

from tests.storage.replicas import copies, derived, of_every_kind, raw, take
from tests.storage.stores import DEDUP, FIRST, Partition, message
from waterclock.model.errors import (
    BadInput,
    FrameDamaged,
    PartitionFaulty,
    StorageFailed,
    StorageFull,
)
from waterclock.storage.replica_log import ReplicaLog


@pytest.fixture
def leader() -> Partition:
    partition = Partition()
    of_every_kind(partition)
    return partition


def test_a_copy_is_the_same_but_for_what_it_says_of_its_own_disk(leader):
    follower = Partition()
    follower.clock.advance(99)  # its own clock says nothing of when a frame was appended

    assert take(follower, raw(leader), leader_epoch=3) == leader.store.end

    assert copies(follower) == copies(leader)
    assert [f.header.flushed_end for f in follower.store.reader.frames(0)] == [0] * 11
    assert follower.store.acknowledged_end == 0
    follower.flush()
    assert (follower.rows(), follower.store.flushed_end) == ({}, leader.store.end)
    ReplicaLog(follower.store).commit(leader.store.end)
    assert follower.rows() == leader.rows()


def test_ids_and_timers_are_known_as_if_it_had_been_published_here(leader):
    follower = Partition()
    for frame in leader.store.frames(0):
        take(follower, bytes(frame.raw), leader_epoch=3)
    follower.flush()

    assert derived(follower) == derived(leader)
    assert follower.publish(message(4)).new_count == 1, "published with allow_duplicate"
    assert follower.publish(message(3)).new_count == 0
    before = derived(follower)
    follower.restart()
    assert derived(follower) == before
    follower.kill()
    follower.open()
    assert derived(follower) == before


@pytest.mark.parametrize("dedup", [True, False])
def test_segments_begin_where_the_replica_says_and_hold_the_same(leader, dedup):
    follower = Partition(
        segment_bytes=4096, dedup=DEDUP if dedup else DEDUP.__class__(enabled=False)
    )

    take(follower, raw(leader), leader_epoch=3)
    follower.flush()

    assert len(follower.store.segments) > 1
    follower.store.run_jobs()
    follower.cut_power()
    follower.open()
    assert copies(follower) == copies(leader)
    assert follower.scheduled() == leader.scheduled()


def test_ids_of_messages_that_are_gone_come_with_the_frame_that_spans_them():
    leader, follower = Partition(), Partition(segment_bytes=4096)
    leader.publish(*(message(n, value=b"v" * 900) for n in range(6)))
    leader.roll()
    leader.fill(range(6, 8))
    leader.rewrite(keep_from=6)

    take(follower, raw(leader))
    follower.flush()

    assert copies(follower) == copies(leader)
    for again in (lambda: None, follower.restart):
        again()
        assert [*follower.publish(*map(message, range(8))).offsets] == [*range(8)]


def test_what_is_refused_changes_nothing(leader):
    follower = Partition()
    frames = [bytes(frame.raw) for frame in leader.store.frames(0)]
    take(follower, b"".join(frames[:3]), leader_epoch=3)
    before = follower.files(), derived(follower)

    for data, epoch in (
        (frames[4], 3),  # a gap
        (frames[2], 3),  # once more
        (frames[3] + frames[3], 3),
        (frames[3] + frames[5], 3),
        (b"".join(frames[3:]), 2),  # an epoch the leader cannot have
        (frames[3][:-1], 3),
        (frames[3] + b"\0" * 72, 3),
    ):
        with pytest.raises(BadInput):
            take(follower, data, leader_epoch=epoch)
    assert (follower.files(), derived(follower)) == before
    take(follower, b"".join(frames[3:]), leader_epoch=3)
    assert copies(follower) == copies(leader)


def test_a_faulty_replica_takes_nothing(leader):
    follower = Partition()
    take(follower, raw(leader, 0, 4), leader_epoch=3)
    follower.close()
    follower.folder.flip(FIRST, 100, 0)
    follower.open()
    with pytest.raises(FrameDamaged):
        follower.store.read(0)

    with pytest.raises(PartitionFaulty):
        take(follower, raw(leader, 4), leader_epoch=3)


def test_a_full_disk_leaves_some_of_them_and_the_rest_follow(leader):
    follower = Partition(segment_bytes=4096, preallocate_bytes=8)
    follower.folder.capacity_bytes = 5_000

    with pytest.raises(StorageFull):
        take(follower, raw(leader), leader_epoch=3)
    follower.folder.capacity_bytes = None
    assert 0 < follower.store.end < leader.store.end
    take(follower, raw(leader, follower.store.end), leader_epoch=3)

    assert copies(follower) == copies(leader)
    assert derived(follower) == derived(leader)


def test_a_failed_write_stops_the_replica(leader):
    follower = Partition()
    follower.folder.fail_next_write(after_bytes=10)

    with pytest.raises(StorageFailed):
        take(follower, raw(leader), leader_epoch=3)
    with pytest.raises(StorageFailed):
        take(follower, raw(leader), leader_epoch=3)
    assert "restart" not in repr(ReplicaLog(follower.store))


@pytest.mark.parametrize("seed", range(30))
def test_after_a_power_cut_it_goes_on_where_its_own_disk_ends(leader, seed):
    random = Random(seed)
    follower = Partition(segment_bytes=4096)
    while follower.store.end < leader.store.end:
        frames = [*leader.store.frames(follower.store.end)][: random.randrange(1, 5)]
        take(follower, b"".join(frame.raw for frame in frames), leader_epoch=3)
        if random.random() < 0.5:
            follower.flush()
        flushed = follower.store.flushed_end
        if random.random() < 0.3:
            follower.cut_power(random.randrange)
            follower.open()
            assert not follower.store.faults
            assert flushed <= follower.store.end
    follower.flush()

    assert copies(follower) == copies(leader)
    assert derived(follower) == derived(leader)
