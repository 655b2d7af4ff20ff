"""A log that was there and is gone is not begun anew as if nothing had been in it."""

import pytest

from tests.kit.disk import SimulatedFolder
from waterclock.log.batch import encode_batch
from waterclock.model.errors import PartitionFaulty
from waterclock.model.ids import Epoch
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.folders.folder import write_whole
from waterclock.storage.installation.lost_log import NAME, note_if_lost
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.repair import accept_loss
from waterclock.storage.replica_log import ReplicaLog


def opened(folder: SimulatedFolder) -> PartitionStore:
    return open_partition(
        folder, log=LogConfig(), dedup=DedupConfig(), now_ms=1, new_log_id=bytes(16)
    )


def test_an_empty_log_in_the_place_of_a_lost_one_is_faulty_after_any_start():
    folder = SimulatedFolder()
    assert note_if_lost(folder)

    for _ in range(2):
        store = opened(folder)
        assert ReplicaLog(store).is_faulty
        with pytest.raises(PartitionFaulty, match="its folder was removed"):
            ReplicaLog(store).begin_epoch(Epoch(1), now_ms=1)
        store.close()
        folder = folder.crash(lambda n: n - 1)
        assert not note_if_lost(folder)


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_lost_log_is_whole_once_the_loss_is_accepted(is_restored: bool):
    folder = SimulatedFolder()
    if is_restored:
        store = opened(folder)
        store.append(encode_batch([Message(b"v", message_id=b"m")], Limits(), now_ms=1), now_ms=1)
        store.close()
        folder = folder.reopen()
        write_whole(folder, NAME, [b"as it was before files were copied back"])
    else:
        note_if_lost(folder)
    store = opened(folder)
    assert store.faults

    accept_loss(store)
    folder = folder.crash()
    again = ReplicaLog(opened(folder))

    assert not again.is_faulty
    assert NAME not in folder.names()
    assert again.end == int(is_restored)
    assert again.begin_epoch(Epoch(1), now_ms=1) == is_restored + 1
    assert not note_if_lost(folder)


def test_a_start_that_ended_before_the_note_was_whole_makes_it_again():
    folder = SimulatedFolder()
    folder.create(f"{NAME}.tmp").close()

    assert note_if_lost(folder)
    assert opened(folder).faults


def test_a_log_that_is_there_is_not_lost():
    folder = SimulatedFolder()
    opened(folder).close()
    folder = folder.reopen()

    assert not note_if_lost(folder)
    assert not opened(folder).faults
