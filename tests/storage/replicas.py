"""Two replicas of a log under test: what one writes is handed to the other as it is."""

from tests.storage.stores import Partition, message, offsets
from waterclock.log.frame import HEADER_BYTES, Frame
from waterclock.model.ids import Epoch
from waterclock.storage.replica_log import ReplicaLog


def raw(partition: Partition, start: int = 0, end: int | None = None) -> bytes:
    """Return the frames of a log as a leader sends them."""
    return b"".join(frame.raw for frame in partition.store.reader.frames(start, end))


def take(partition: Partition, data: bytes, *, leader_epoch: int = 0) -> int:
    """Have a replica take frames of its leader, without flushing them."""
    now = partition.clock.now_ms()
    log = ReplicaLog(partition.store)
    return log.append_frames(data, leader_epoch=Epoch(leader_epoch), now_ms=now)


def copied(frame: Frame) -> tuple[object, ...]:
    """Return what must be the same of a frame in all replicas."""
    return (*frame.header._replace(unflushed=0), bytes(frame.raw[HEADER_BYTES:]))


def copies(partition: Partition, end: int | None = None) -> list[tuple[object, ...]]:
    """Return what must be the same of all frames of a log, or of those that begin below `end`."""
    return [copied(frame) for frame in partition.store.reader.frames(partition.store.start, end)]


def derived(partition: Partition) -> tuple[object, ...]:
    """Return all that a store knows besides its frames."""
    store = partition.store
    assert store.ids is not None
    entries = sorted(
        base + (e & 0xFFFFFF) for base, run in store.ids.pieces() for e in run.tolist()
    )
    known = [store.endings(offsets(*range(store.end))).tolist(), entries]
    return (store.epoch, store.log_time_ms, store.end, partition.scheduled(), *known)


def of_every_kind(partition: Partition) -> None:
    """Write frames of all types that a leader sends."""
    store, now = partition.store, partition.clock.now_ms()
    store.begin_epoch(Epoch(1), now_ms=now)
    large = b"v" * 1_500
    partition.publish(
        message(1, value=large), message(2, due_ms=now + 50), message(3, due_ms=now + 60)
    )
    partition.publish(message(1), message(4, value=large), allow_duplicate=True)
    partition.publish(message(5, due_ms=now + 70, value=large), message(6, due_ms=now + 80))
    store.fire(offsets(2), now_ms=now)
    partition.clock.advance(5)
    now = partition.clock.now_ms()
    store.begin_epoch(Epoch(3), now_ms=now)
    store.cancel(offsets(3), now_ms=now)
    store.reschedule(offsets(6), offsets(now + 500), now_ms=now)
    store.cancel(offsets(7), now_ms=now, has_expired=True)
    partition.publish(message(8, value=large))
