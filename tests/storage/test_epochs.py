"""A replica knows the leader epochs of its log, whatever was lost of it."""

from random import Random

import pytest

from tests.storage.replicas import of_every_kind, raw, take
from tests.storage.stores import WINDOW_MS, Partition, disk_of, flipped, message
from waterclock.model.errors import BadInput, PartitionFaulty, StorageFailed, StorageFull
from waterclock.model.ids import Epoch
from waterclock.storage.epoch_file import NAME, load_epochs
from waterclock.storage.replica_log import ReplicaLog


def begin(partition: Partition, epoch: int) -> None:
    ReplicaLog(partition.store).begin_epoch(Epoch(epoch), now_ms=partition.clock.now_ms())


@pytest.fixture
def led() -> Partition:
    """Epoch 0 in [0, 2), 1 in [2, 4), 4 from there."""
    partition = Partition()
    partition.fill(range(2))
    begin(partition, 1)
    partition.fill(range(2, 3))
    begin(partition, 4)
    partition.fill(range(3, 5))
    return partition


def starts(partition: Partition) -> list[tuple[int, int]]:
    return [(start.epoch, start.offset) for start in ReplicaLog(partition.store).lineage.starts]


def test_a_leader_notes_where_its_epoch_begins(led):
    assert starts(led) == [(1, 2), (4, 4)]
    assert ReplicaLog(led.store).lineage.last == (4, 7)
    led.restart()
    assert starts(led) == [(1, 2), (4, 4)]
    for epoch in (3, 4):
        with pytest.raises(BadInput):
            begin(led, epoch)


def test_a_follower_notes_where_its_leaders_epochs_began():
    leader, follower = Partition(), Partition()
    of_every_kind(leader)

    take(follower, raw(leader), leader_epoch=3)

    assert starts(follower) == starts(leader) == [(1, 0), (3, 9)]


def test_a_log_of_one_node_has_no_table_and_needs_none():
    partition = Partition()
    partition.fill(range(3), roll=True)
    partition.fill(range(3, 5))
    partition.rewrite(keep_from=3)

    assert starts(partition) == []
    assert NAME not in partition.files()


@pytest.mark.parametrize("harm", ["gone", "damaged", "empty"])
def test_a_table_that_is_lost_is_made_again_from_the_frames(led, harm):
    led.roll()
    led.close()
    files = led.files()
    if harm == "gone":
        del files[NAME]
    else:
        files[NAME] = flipped(files[NAME], 20) if harm == "damaged" else b""
    led.folder = disk_of(files)
    led.open()

    assert starts(led) == [(1, 2), (4, 4)]
    assert load_epochs(led.folder) == ((1, 2), (4, 4))


def test_a_table_that_is_lost_of_a_log_that_was_rewritten_is_not_guessed(led):
    led.roll()
    led.store.commit(7)
    led.rewrite(keep_from=7)
    led.close()
    files = led.files()
    del files[NAME]
    led.folder = disk_of(files)
    led.open()

    with pytest.raises(PartitionFaulty, match="epoch 4 is not in the epoch table"):
        ReplicaLog(led.store)


def test_compaction_takes_epoch_frames_and_leaves_the_table(led):
    led.roll()
    led.store.commit(7)
    led.rewrite(keep_from=7)
    led.restart()

    assert starts(led) == [(1, 2), (4, 4)]


def test_an_epoch_that_found_no_room_is_not_there(led):
    used = sum(map(len, led.files().values()))
    led.folder.capacity_bytes = used + 10
    with pytest.raises(StorageFull):
        begin(led, 5)
    led.folder.capacity_bytes = None

    assert starts(led) == [(1, 2), (4, 4)]
    begin(led, 6)
    assert starts(led) == [(1, 2), (4, 4), (6, 7)]


def test_an_epoch_that_found_no_room_does_not_claim_frames_of_an_older_one(led, monkeypatch):
    follower = Partition()
    take(follower, raw(led, 0, 6), leader_epoch=4)
    log = ReplicaLog(follower.store)
    monkeypatch.setattr(follower.store, "begin_epoch", full)
    with pytest.raises(StorageFull):
        log.begin_epoch(Epoch(5), now_ms=follower.clock.now_ms())
    log.append_frames(raw(led, 6), leader_epoch=Epoch(6), now_ms=follower.clock.now_ms())

    assert log.lineage.last == (4, 7)
    assert load_epochs(follower.folder) == ((1, 2), (4, 4))


def full(*_: object, **__: object) -> None:
    raise StorageFull("no room for a frame")


def test_a_table_that_cannot_be_saved_stops_the_log(led):
    led.folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        begin(led, 5)
    with pytest.raises(StorageFailed):
        led.append(message(9))


def crashes() -> None:
    """Cut the power at every sync while epochs begin, and compare table and frames.

    In a log that was rewritten: what the table has not, nothing has.
    """
    partition = Partition()
    partition.fill(range(100, 102), roll=True)
    partition.clock.advance(WINDOW_MS + 1)
    partition.fill(range(102, 103))
    partition.rewrite(keep_from=2)
    assert partition.store.start == 2
    folder = partition.folder

    def crash(name: str) -> None:
        for seed in range(6):
            other = Partition(folder.crash(Random(f"{name} {seed}").randrange))
            log = ReplicaLog(other.store)
            truth = {h.epoch: h.base_offset for s in other.store.segments for h in s.headers()
                     if h.type.name == "EPOCH"}  # fmt: skip
            assert dict(log.lineage.starts) == truth
            assert dict(load_epochs(other.folder) or ()) == truth
            # An older leader's frames come to where an epoch was begun and lost.
            other.append(message(1_000 + seed))
            assert log.lineage.last.epoch == other.store.epoch

    folder.on_sync = crash
    for epoch in (1, 2, 5):
        log = ReplicaLog(partition.store)
        log.begin_epoch(Epoch(epoch), now_ms=partition.clock.now_ms())
        partition.append(message(epoch))
        partition.flush()
        partition.append(message(10 + epoch))


def test_a_power_cut_at_any_moment_leaves_the_epochs_that_the_frames_have():
    crashes()


def test_an_epoch_noted_after_its_frame_would_be_found(monkeypatch):
    def late(self, epoch, *, now_ms):
        starts = self.lineage.begun(epoch, self.store.end)
        self.store.begin_epoch(epoch, now_ms=now_ms)
        self.store.sync()
        self._save(starts)

    monkeypatch.setattr(ReplicaLog, "begin_epoch", late)
    with pytest.raises(PartitionFaulty):
        crashes()


def test_an_epoch_that_was_lost_and_stays_in_the_table_would_be_found(monkeypatch):
    monkeypatch.setattr(ReplicaLog, "_epochs_of", lambda self, found: found or ())
    with pytest.raises(AssertionError):
        crashes()
