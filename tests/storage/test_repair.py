"""A faulty log takes appends again once an operator has accepted the loss, and not before."""

import pytest

from tests.kit.disk import SimulatedFolder
from waterclock.log.batch import encode_batch
from waterclock.model.errors import PartitionFaulty
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.repair import accept_loss

NOW = 1_700_000_000_000
LOG = LogConfig(segment_bytes=4096, preallocate_bytes=1024)


def opened(folder: SimulatedFolder) -> PartitionStore:
    return open_partition(
        folder, log=LOG, dedup=DedupConfig(), now_ms=NOW, new_log_id=bytes(range(16))
    )


def append(store: PartitionStore, number: int) -> None:
    message = Message(b"v%d" % number, message_id=b"m%d" % number)
    store.append(encode_batch([message], Limits(), now_ms=NOW), now_ms=NOW)


def written(count: int) -> SimulatedFolder:
    folder = SimulatedFolder()
    store = opened(folder)
    for number in range(count):
        append(store, number)
    store.close()
    return folder.reopen()


def without_sidecars(folder: SimulatedFolder) -> None:
    for name in folder.names():
        if name.endswith((".index", ".ids", ".due")):
            folder.remove(name)


@pytest.mark.parametrize("segment", [0, -1])
def test_a_rotten_frame_is_given_up_and_everything_else_kept(segment: int) -> None:
    folder = written(12)
    name = [n for n in folder.names() if n.endswith(".seg")][segment]
    folder.flip(name, 64 + 100, 3)
    without_sidecars(folder)
    store = opened(folder)
    assert len(store.faults) == 1
    gone = store.faults[0]
    with pytest.raises(PartitionFaulty):
        append(store, 99)

    accept_loss(store)
    store = opened(folder.reopen())

    assert not store.faults
    found = [f.header.base_offset for f in store.frames(0) if f.header.rows]
    assert found == [offset for offset in range(12) if not gone.start <= offset < gone.end]
    append(store, 12)
    assert store.end == 13


def test_the_damaged_file_stays_beside_its_replacement() -> None:
    folder = written(3)
    folder.flip("00000000000000000000.seg", 200, 0)
    without_sidecars(folder)
    file = folder.open("00000000000000000000.seg")
    before = bytes(file.view(0, file.size()))
    file.close()

    store = opened(folder)
    accept_loss(store)
    folder = folder.reopen()

    kept = folder.open("00000000000000000000.seg.damaged.0")
    assert bytes(kept.view(0, kept.size())) == before


def test_offsets_vouched_for_but_missing_at_the_end_are_never_used_again() -> None:
    folder = written(3)
    folder.remove("00000000000000000000.seg")
    empty = SimulatedFolder()
    opened(empty).close()
    other = empty.reopen().open("00000000000000000000.seg")
    fresh = folder.create("00000000000000000000.seg")
    fresh.write(0, [bytes(other.view(0, other.size()))])
    without_sidecars(folder)
    store = opened(folder)
    assert [(d.start, d.end) for d in store.faults] == [(0, 3)]

    accept_loss(store)
    store = opened(folder.reopen())

    assert (store.end, store.faults) == (3, [])
