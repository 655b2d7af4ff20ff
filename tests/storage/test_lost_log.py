"""A log that was there and is gone is not begun anew as if nothing had been in it."""

import pytest

from tests.kit.disk import SimulatedFolder
from waterclock.model.errors import PartitionFaulty
from waterclock.model.ids import Epoch
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.installation.lost_log import NAME, note_if_lost
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
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
