"""Narrow ways to lose or revive a message, which random histories do not reach."""

import numpy as np
import pytest

from tests.kit.disk import SimulatedFolder
from waterclock.log.batch import encode_batch
from waterclock.log.schema import decode, row_offsets
from waterclock.model.errors import FrameDamaged, StorageFailed
from waterclock.model.ids import Epoch, Millis
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.repair import accept_loss
from waterclock.storage.rewrite import Wanted, rewrites

NOW = 1_700_000_000_000
DAY = 86_400_000


def opened(folder: SimulatedFolder, **settings: object) -> PartitionStore:
    log = LogConfig(segment_bytes=4096, preallocate_bytes=1024, **settings)  # type: ignore[arg-type]
    return open_partition(
        folder, log=log, dedup=DedupConfig(), now_ms=NOW, new_log_id=bytes(range(16))
    )


def publish(store: PartitionStore, *messages: Message, now_ms: int = NOW) -> None:
    store.append(encode_batch(messages, Limits(), now_ms=now_ms), now_ms=now_ms)


@pytest.mark.parametrize("step", ["roll", "sync", "close"])
def test_an_fsync_that_failed_unheard_is_heard_before_the_next_one_succeeds(step: str) -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    publish(store, Message(b"v", message_id=b"a"))
    sync = store.begin_sync(NOW)
    assert sync is not None
    folder.fail_next_sync()
    with pytest.raises(StorageFailed):
        sync.run()  # on its thread; the owner has not heard of it yet

    with pytest.raises(StorageFailed):
        {"roll": lambda: store.roll(NOW), "sync": store.sync, "close": store.close}[step]()

    assert store.acknowledged_end == 0


def test_a_job_whose_fsync_failed_stops_the_store() -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    publish(store, Message(b"v", message_id=b"a"))
    store.roll(NOW)
    folder.fail_next_folder_sync()

    with pytest.raises(StorageFailed):
        store.run_jobs()
    with pytest.raises(StorageFailed, match="restart"):
        publish(store, Message(b"w", message_id=b"b"))


def test_a_store_cut_short_between_writing_and_noting_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    later = Message(b"v", message_id=b"a", due_ms=Millis(NOW + 5_000))

    def out_of_memory(batch: object) -> None:
        raise MemoryError

    monkeypatch.setattr(store, "_schedule", out_of_memory)
    with pytest.raises(MemoryError):
        publish(store, later)
    with pytest.raises(StorageFailed, match="restart"):
        publish(store, later)
    folder.close()
    store = opened(folder.reopen())

    assert store.open_scheduled()[0].tolist() == [0]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_deleted_key_stays_deleted_though_its_segment_did_not_shrink(compression: str) -> None:
    store = opened(SimulatedFolder())
    first = [Message(b"A" * 900, key=b"k%d" % n, message_id=b"f%d" % n) for n in range(3)]
    batch = encode_batch(first, Limits(), now_ms=NOW, compression=compression)  # type: ignore[arg-type]
    store.append(batch, now_ms=NOW)
    store.roll(NOW)
    publish(store, Message(None, key=b"k0", message_id=b"gone"))
    store.roll(NOW)
    publish(store, Message(b"x", message_id=b"x"), now_ms=NOW + 2 * DAY)
    store.sync()

    for job in rewrites(store, Wanted(keep_from=store.end, by_key=True), now_ms=NOW + 2 * DAY):
        job.run()
        job.finish()

    keys = [
        key
        for frame in store.frames(store.start)
        if frame.header.is_deliverable
        for key in decode(frame.header, frame.body).column("key").to_pylist()
    ]
    assert keys == [b"k1", b"k2", None]


def test_a_pass_ends_with_the_job_that_was_not_finished() -> None:
    store = opened(SimulatedFolder())
    for number in range(3):
        publish(store, Message(b"v", key=b"k", message_id=b"m%d" % number))
        store.roll(NOW)

    jobs = list(rewrites(store, Wanted(keep_from=store.end), now_ms=NOW))

    assert len(jobs) == 1


def damaged(folder: SimulatedFolder, name: str, position: int) -> SimulatedFolder:
    folder.flip(name, position, 0)
    for sidecar in [n for n in folder.names() if n.endswith((".index", ".ids", ".due"))]:
        folder.remove(sidecar)
    return folder


def test_a_repair_keeps_the_epoch() -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    store.begin_epoch(Epoch(5), now_ms=NOW)
    store.roll(NOW)
    publish(store, Message(b"v", message_id=b"a"))
    store.close()
    accept_loss(opened(damaged(folder.reopen(), "00000000000000000001.seg", 64 + 100)))

    assert opened(folder.reopen()).epoch == 5


def test_a_repair_gives_up_every_offset_of_the_last_frame() -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    publish(store, *[Message(b"v", message_id=b"m%d" % n) for n in range(7)])
    store.close()
    folder = damaged(folder.reopen(), "00000000000000000000.seg", 64 + 72 + 100)
    folder.flip("recovery-point", 9, 0)
    accept_loss(opened(folder))

    assert opened(folder.reopen()).end == 7


def test_frames_before_damage_can_be_read() -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    for number in range(3):
        publish(store, Message(b"v", message_id=b"m%d" % number))
    store.sync()
    size = store.read(0)[0].header.size
    store.close()
    store = opened(damaged(folder.reopen(), "00000000000000000000.seg", 64 + size + 100))

    assert [frame.header.base_offset for frame in store.read(0)] == [0]
    with pytest.raises(FrameDamaged):
        store.read(1)


def test_a_faulty_store_still_flushes_when_it_is_closed() -> None:
    folder = SimulatedFolder()
    store = opened(folder, fsync="interval")
    publish(store, Message(b"v", message_id=b"a"))
    store.roll(NOW)
    publish(store, Message(b"w", message_id=b"b"))
    folder.flip("00000000000000000000.seg", 64 + 100, 0)
    with pytest.raises(FrameDamaged):
        store.read(0)
    store.close()

    assert opened(folder.reopen().crash()).end == 2


def test_scheduled_messages_do_not_keep_their_batches_in_memory() -> None:
    store = opened(SimulatedFolder())
    batch = encode_batch(
        [Message(b"v", message_id=b"a", due_ms=Millis(NOW + 9))], Limits(), now_ms=NOW
    )
    store.append(batch, now_ms=NOW)

    assert batch.due_ms is not None
    kept = store.active_delta._opened._pieces[0].due
    assert not np.shares_memory(kept, batch.due_ms)


def test_leftovers_of_a_failed_attempt_are_in_nobodys_way() -> None:
    folder = SimulatedFolder()
    store = opened(folder)
    publish(store, Message(b"v", message_id=b"a"))
    store.roll(NOW)
    store.run_jobs()
    folder.create("00000000000000000000.seg.tmp").close()
    folder.create("00000000000000000000.ids.tmp").close()

    for job in rewrites(store, Wanted(keep_from=store.end), now_ms=NOW):
        job.run()
        job.finish()

    frames = list(store.segments[0].frames(64))
    assert [f.header.type.name for f in frames] == ["NOOP", "SEEN"]
    assert row_offsets(frames[1].header, decode(frames[1].header, frames[1].body)).tolist() == [0]
