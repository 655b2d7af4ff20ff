"""A replica cuts its log where its leader's leaves it: all of the cut, whenever the power goes."""

import re
from collections.abc import Callable

import pytest

from tests.kit.disk import SimulatedFolder
from tests.storage.replica_history import ReplicaHistory
from tests.storage.stores import FIRST, Partition, files_of, message, offsets
from waterclock.log.frame import read_frame
from waterclock.log.recovery import Damage
from waterclock.model.errors import BadInput, Closed, OffsetOutOfRange, PartitionFaulty
from waterclock.model.ids import Epoch, Offset
from waterclock.storage import opening, replica_log, truncation
from waterclock.storage.folders.folder import Folder
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.recovery_point import encode_note
from waterclock.storage.replica_log import ReplicaLog

HISTORIES = 60
HUNTS = 60


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_history_of_leaders_and_power_cuts_leaves_a_wrong_log(seed):
    ReplicaHistory(seed).run()


def truncate(partition: Partition, end: int) -> None:
    ReplicaLog(partition.store).truncate(end)
    partition.restart()


@pytest.fixture
def replica() -> Partition:
    """Three segments, [0, 6), [6, 12) and [12, 14), all flushed, with side-cars."""
    partition = Partition()
    partition.fill(range(6), roll=True)
    partition.fill(range(6, 12), roll=True)
    partition.fill(range(12, 14))
    return partition


def cut_and_come_again(replica: Partition) -> list[Damage]:
    """Cut below a segment, write one that begins where it did, and end without a word."""
    truncate(replica, 4)
    replica.fill(range(20, 22), roll=True)
    replica.fill(range(22, 23))
    replica.kill()
    return replica.open().faults


def test_side_cars_of_segments_that_were_cut_do_not_vouch_for_their_successors(replica):
    assert cut_and_come_again(replica) == []
    assert [frame.header.base_offset for frame in replica.store.frames(0)] == [*range(7)]


def test_side_cars_that_were_left_would_be_found(replica, monkeypatch):
    monkeypatch.setattr(truncation, "_SIDECAR", re.compile("none"))

    assert cut_and_come_again(replica) != []


@pytest.mark.parametrize("end", [0, 1, 6, 7, 11, 12, 13])
def test_a_log_is_cut_anywhere_and_forgets_what_was_there(replica, end):
    truncate(replica, end)
    store = replica.store

    assert (store.end, store.flushed_end, store.faults) == (end, end, [])
    assert truncation.NAME not in replica.files()
    again = replica.publish(*map(message, range(14)))
    assert [*again.offsets] == [*range(14)]
    assert again.new_count == 14 - end


def test_a_cut_undoes_a_cancel_and_a_fire(replica):
    now = replica.clock.now_ms()
    replica.publish(message(30, due_ms=now + 50), message(31, due_ms=now + 60))
    replica.store.cancel(offsets(14), now_ms=now)
    replica.store.fire(offsets(15), now_ms=now)
    replica.flush()
    assert replica.scheduled() == {}

    truncate(replica, 16)

    assert replica.scheduled() == {14: now + 50, 15: now + 60}
    assert replica.store.endings(offsets(14)).tolist() == [0]


def test_a_reader_of_what_is_cut_reads_on_in_the_old_file(replica):
    frames = [*replica.store.frames(0)]
    truncate(replica, 1)

    assert [bytes(frame.body) != b"" for frame in frames] == [True] * 14
    assert [read_frame(frame.raw).header for frame in frames] == [f.header for f in frames]


def test_what_must_not_be_cut_is_refused_and_nothing_changes(replica):
    replica.publish(message(50), message(51), message(52))
    log, before = ReplicaLog(replica.store), replica.files()
    log.commit(9)

    for end, error in ((8, BadInput), (15, BadInput), (17, OffsetOutOfRange)):
        with pytest.raises(error):
            log.truncate(end)
    assert replica.files() == before
    log.truncate(9)
    with pytest.raises(Closed):
        log.append_frames(b"", leader_epoch=Epoch(0), now_ms=0)
    with pytest.raises(Closed):
        log.truncate(10)


@pytest.mark.parametrize("at", [0, 9, 20, 31])
def test_an_intent_that_cannot_be_read_changes_nothing(replica, at):
    ReplicaLog(replica.store).truncate(3)
    replica.close()
    replica.folder.flip(truncation.NAME, at, 0)
    before = replica.files()

    with pytest.raises(PartitionFaulty, match="truncation cannot be read"):
        replica.open()
    replica.folder = replica.folder.reopen()
    assert replica.files() == before


def test_rot_in_what_is_kept_is_not_cut_off(replica):
    ReplicaLog(replica.store).truncate(5)
    replica.close()
    replica.folder.flip(FIRST, 200, 0)

    with pytest.raises(PartitionFaulty, match=FIRST):
        replica.open()
    replica.folder = replica.folder.reopen()
    assert truncation.NAME in replica.files()
    replica.folder.flip(FIRST, 200, 0)
    assert replica.open().end == 5


def test_the_intent_has_the_bytes_of_version_1():
    folder = SimulatedFolder()
    truncation.save_intent(folder, 1 << 40)

    whole = "f3574354520d0a01 0000000000010000 0000000000000000 0000000052f12093"
    assert files_of(folder)[truncation.NAME] == bytes.fromhex(whole)


# The histories can tell: each of these is found.

Plant = Callable[[pytest.MonkeyPatch], None]


def leave_the_recovery_point(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(truncation, "save_recovery_point", lambda folder, end: None)


def leave_the_later_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(truncation, "sorted", lambda bases: sorted(bases)[:1], raising=False)


def intend_before_flushing(patch: pytest.MonkeyPatch) -> None:
    real = ReplicaLog.truncate

    def hasty(log: ReplicaLog, end: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PartitionStore, "sync", lambda store: None)
            real(log, end)

    patch.setattr(ReplicaLog, "truncate", hasty)


def intend_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def unsynced(folder: Folder, end: int) -> None:
        file = folder.create(truncation.NAME)
        file.write(0, [encode_note(truncation._MAGIC, end)])

    patch.setattr(replica_log, "save_intent", unsynced)


def give_up_the_intent_before_the_cut(patch: pytest.MonkeyPatch) -> None:
    real = truncation._cut

    def late(folder: Folder, name: str, end: Offset) -> None:
        data = folder.open(truncation.NAME).view(0, 32)
        folder.remove(truncation.NAME)
        folder.sync()
        real(folder, name, end)
        folder.create(truncation.NAME).write(0, [data])

    patch.setattr(truncation, "_cut", late)


def keep_a_frame_too_many(patch: pytest.MonkeyPatch) -> None:
    real = truncation._position_of
    patch.setattr(
        truncation, "_position_of", lambda file, tag, end, at: real(file, tag, Offset(end + 1), at)
    )


def keep_the_epochs_that_were_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(truncation, "load_epochs", lambda folder: None)
    patch.setattr(ReplicaLog, "_epochs_of", lambda log, found: found or ())
    patch.setattr(ReplicaLog, "_has_unbegun", lambda log: False)


def forget_to_open_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "finish_truncation", lambda folder: None)


PLANTS = [
    leave_the_recovery_point,
    leave_the_later_segments,
    intend_before_flushing,
    intend_in_memory_only,
    give_up_the_intent_before_the_cut,
    keep_a_frame_too_many,
    keep_the_epochs_that_were_cut,
    forget_to_open_again,
]


def hunt() -> None:
    for seed in range(HUNTS):
        ReplicaHistory(seed).run()


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_the_histories_find_a_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    with pytest.raises(Exception) as found:  # noqa: PT011 - any way of noticing will do
        hunt()

    broken = (TypeError, AttributeError, NameError)
    assert not isinstance(found.value, broken), "the plant is broken"
