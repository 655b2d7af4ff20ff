"""A replica takes its leader's segments whole: all of them, whenever the power goes."""

import re
from collections.abc import Callable
from random import Random

import pytest
from crc32c import crc32c

from tests.kit.disk import Choose, SimulatedFolder, keep_all, lose_all
from tests.storage.replicas import copies, derived, raw, take
from tests.storage.stores import Partition, flipped, message, offsets
from waterclock.log.segment import segment_name
from waterclock.model.errors import BadInput, Closed, PartitionFaulty, StorageError, StorageFull
from waterclock.model.ids import Epoch, Offset
from waterclock.storage import opening
from waterclock.storage.folders.folder import Folder
from waterclock.storage.installation import intent as intents
from waterclock.storage.installation.intent import Intent
from waterclock.storage.installation.log_copy import CopyWriter, LogCopy
from waterclock.storage.replica_log import ReplicaLog

LATER = 1
"""The offset of a message that stays."""
CANCELLED = 3
"""The offset of a message that the leader cancelled, and forgot."""


class PowerCut(Exception):
    """The machine ends in the middle of a sync."""


def leading() -> tuple[Partition, Partition]:
    """Return a leader that has rewritten [0, 12), and a replica that has the first seven frames."""
    leader, replica = Partition(), Partition()
    now = leader.clock.now_ms()
    ReplicaLog(leader.store).begin_epoch(Epoch(1), now_ms=now)
    leader.publish(message(1, due_ms=now + 1_000_000))
    leader.fill(range(2, 3))
    leader.publish(message(3, due_ms=now + 50))
    leader.roll()
    leader.fill(range(4, 7))
    take(replica, raw(leader), leader_epoch=1)
    replica.flush()
    ReplicaLog(leader.store).begin_epoch(Epoch(2), now_ms=now)
    leader.store.cancel(offsets(CANCELLED), now_ms=now)
    leader.fill(range(9, 12), roll=True)
    leader.clock.advance(100_000)
    leader.fill(range(12, 14))
    rewrite(leader, keep_from=12)
    return leader, replica


def rewrite(leader: Partition, *, keep_from: int) -> None:
    """Have retention take what lies below an offset; everything is committed."""
    ReplicaLog(leader.store).commit(leader.store.end)
    leader.rewrite(keep_from=keep_from)


def forget_later(leader: Partition) -> None:
    """Leave nothing below 12: the log begins there then."""
    leader.store.cancel(offsets(LATER), now_ms=leader.clock.now_ms())
    leader.flush()
    rewrite(leader, keep_from=12)


def writer_of(replica: Partition, copy: LogCopy) -> CopyWriter:
    return CopyWriter(replica.folder, replica.store.log_id, copy.head, now_ms=5)


def fetch(replica: Partition, copy: LogCopy) -> Intent:
    """Copy segments beside the log."""
    writer = writer_of(replica, copy)
    for _, data in copy.segments:
        middle = len(data) // 2
        writer.write(data[:middle])
        writer.write(data[middle:])
        writer.end_segment(crc32c(data))
    return writer.finish()


def install(replica: Partition, copy: LogCopy) -> None:
    """Have a replica take a copy for its log; it is closed then."""
    log = ReplicaLog(replica.store)
    log.install(fetch(replica, copy))
    replica.close()


def test_a_lagging_replica_takes_the_segments_of_its_leader_and_then_its_frames():
    leader, replica = leading()
    copy = ReplicaLog(leader.store).copy()
    assert CANCELLED in replica.scheduled()
    assert copy.end == 12
    install(replica, copy)
    replica.open()

    log = ReplicaLog(replica.store)
    assert (log.end, log.flushed_end, log.stream_start, log.is_faulty) == (12, 12, 12, False)
    assert log.lineage.last == (2, 12)
    take(replica, raw(leader, 12), leader_epoch=2)
    replica.flush()
    assert copies(replica) == copies(leader)
    leader.restart()  # as the replica is: ids out of the window are forgotten then
    assert derived(replica) == derived(leader)
    assert ReplicaLog(replica.store).lineage == ReplicaLog(leader.store).lineage


def test_a_cancel_that_was_compacted_away_takes_its_message_along():
    leader, replica = leading()
    frames = [frame.header.type.name for frame in leader.store.reader.frames(0)]
    assert "CANCEL" not in frames
    install(replica, ReplicaLog(leader.store).copy())
    replica.open()

    assert [*replica.scheduled()] == [LATER]
    take(replica, raw(leader, 12), leader_epoch=2)
    assert [*replica.scheduled()] == [LATER]


def test_frames_below_a_rewritten_segment_would_leave_the_message_to_fire():
    leader, replica = leading()
    take(replica, raw(leader, 7), leader_epoch=2)

    assert CANCELLED in replica.scheduled()


def test_a_replica_that_has_nothing_takes_a_log_that_begins_late():
    leader, _ = leading()
    forget_later(leader)
    copy = ReplicaLog(leader.store).copy()
    assert copy.end == leader.store.start == 12, "the one with the last frame stays"
    wiped = Partition()
    install(wiped, copy)
    wiped.open()

    log = ReplicaLog(wiped.store)
    assert (log.store.start, log.end, log.lineage.last) == (12, 12, (2, 12))
    take(wiped, raw(leader, 12), leader_epoch=2)
    wiped.restart()
    assert copies(wiped) == copies(leader)


def test_a_log_without_a_frame_and_without_its_epochs_is_faulty():
    leader, _ = leading()
    wiped = Partition()
    bare = ReplicaLog(leader.store).copy()._replace(segments=())
    install(wiped, bare)
    wiped.open()
    assert ReplicaLog(wiped.store).lineage.last == (2, 12)
    wiped.folder.remove("epoch-table")

    with pytest.raises(PartitionFaulty, match="epoch table"):
        ReplicaLog(wiped.store)


def test_a_damaged_replica_begins_with_what_the_leader_has():
    leader, replica = leading()
    replica.roll()
    replica.fill(range(30, 50))
    replica.kill()
    name = next(name for name in replica.files() if name.endswith(".seg"))
    replica.folder.flip(name, 200, 3)
    replica.open()
    for name in replica.files():
        if name.endswith((".index", ".ids", ".due")):
            replica.folder.remove(name)
    replica.kill()
    assert replica.open().faults
    install(replica, ReplicaLog(leader.store).copy())

    assert not replica.open().faults
    assert replica.store.end == 12


def test_the_leader_rewrites_while_it_is_copied():
    leader, replica = leading()
    copy = ReplicaLog(leader.store).copy()
    before = copies(leader, 12)
    leader.roll()
    leader.clock.advance(100_000)
    rewrite(leader, keep_from=14)
    install(replica, copy)
    replica.open()

    assert copies(replica) == before


# Copies that are not good


def test_a_copy_that_is_not_what_was_sent_is_refused():
    leader, replica = leading()
    copy = ReplicaLog(leader.store).copy()
    writer = writer_of(replica, copy)
    data = bytes(copy.segments[0][1])
    writer.write(flipped(data, 100))

    with pytest.raises(BadInput, match="not what was sent"):
        writer.end_segment(crc32c(data))


def test_a_segment_that_has_rotted_at_the_leader_is_refused():
    leader, replica = leading()
    copy = ReplicaLog(leader.store).copy()
    writer = writer_of(replica, copy)
    data = flipped(bytes(copy.segments[0][1]), 100)
    writer.write(data)

    with pytest.raises(BadInput, match="damaged where it was copied from"):
        writer.end_segment(crc32c(data))


def test_more_than_was_announced_is_refused():
    leader, replica = leading()
    copy = ReplicaLog(leader.store).copy()
    writer = writer_of(replica, copy)
    writer.write(copy.segments[0][1])

    with pytest.raises(BadInput, match="longer"):
        writer.write(b"more")


def test_half_a_copy_is_no_log():
    leader, replica = leading()
    writer = writer_of(replica, ReplicaLog(leader.store).copy())

    with pytest.raises(BadInput, match="not whole"):
        writer.finish()


def test_a_disk_without_room_says_so_at_once():
    leader, replica = leading()
    used = sum(map(len, replica.files().values()))
    replica.folder.capacity_bytes = used + 300

    with pytest.raises(StorageFull):
        writer_of(replica, ReplicaLog(leader.store).copy())
    replica.folder.capacity_bytes = None
    before = copies(replica)
    replica.restart()
    assert copies(replica) == before
    assert not [name for name in replica.files() if name.endswith(intents.COPIED)]


def test_a_copy_that_ends_before_the_log_is_refused():
    leader, replica = leading()
    copy = ReplicaLog(leader.store).copy()
    take(replica, raw(leader, 7), leader_epoch=2)

    with pytest.raises(BadInput, match="before 14"):
        ReplicaLog(replica.store).install(fetch(replica, copy))


def test_nothing_is_written_to_a_log_that_is_given_up():
    leader, replica = leading()
    log = ReplicaLog(replica.store)
    log.install(fetch(replica, ReplicaLog(leader.store).copy()))

    with pytest.raises(Closed, match="replaced"):
        log.append_frames(raw(leader, 7), leader_epoch=Epoch(2), now_ms=1)


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_note_that_cannot_be_read_is_not_guessed_at(at):
    leader, replica = leading()
    install(replica, ReplicaLog(leader.store).copy())
    replica.folder.flip(intents.NAME, at, 0)

    with pytest.raises(PartitionFaulty, match="installation cannot be read"):
        replica.open()


def test_a_copied_segment_that_is_gone_is_missed():
    leader, replica = leading()
    install(replica, ReplicaLog(leader.store).copy())
    replica.folder.remove(intents.copied_name(12))

    with pytest.raises(PartitionFaulty, match="is gone"):
        replica.open()


def test_the_note_is_as_drawn():
    folder = SimulatedFolder()
    intents.save_intent(folder, Intent(Offset(9), (Offset(4), Offset(9)), ((Epoch(2), Offset(5)),)))  # type: ignore[arg-type]
    data = bytes(folder.open(intents.NAME).view(0, 60))

    assert data.hex() == (
        "f35743494e0d0a01 0900000000000000 01000000 02000000 0200000000000000 0500000000000000"
        " 0400000000000000 0900000000000000".replace(" ", "")
        + data[-4:].hex()
    )


# The power goes


def burning(syncs: int) -> Callable[[str], None]:
    """Return a hook that ends the machine in one of the next syncs."""
    left = [syncs]

    def on_sync(name: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise PowerCut

    return on_sync


def old_or_new(seed: int) -> None:
    """Cut the power in an installation and in the openings after it: it is the old log or the new.

    The replica must not lose what it had flushed, and must go on with what its leader has.
    """
    random = Random(seed)
    leader, replica = leading()
    if random.random() < 0.4:
        forget_later(leader)
    if random.random() < 0.5:
        replica.roll()
    copy = ReplicaLog(leader.store).copy()
    old, new = copies(replica), copies(leader, 12)
    choices: list[Choose] = [lose_all, keep_all, random.randrange]
    choose = random.choice(choices)
    replica.folder.on_sync = burning(random.randrange(1, 24))
    is_intended = False
    try:
        intent = fetch(replica, copy)
        ReplicaLog(replica.store).install(intent)
        is_intended = True
        (replica.close if random.random() < 0.5 else replica.kill)()
        replica.open()
    except PowerCut:
        for syncs in (random.randrange(1, 8), random.randrange(1, 8), 1_000):
            replica.cut_power(choose)
            replica.folder.on_sync = burning(syncs)
            try:
                replica.open()
                break
            except PowerCut:
                continue
    replica.folder.on_sync = None
    assert not replica.store.faults
    found = copies(replica)
    assert found in (old, new), "a mix of two logs"
    assert found == new or not is_intended, "the old log is back"
    log = ReplicaLog(replica.store)
    assert log.lineage.last == ((2, 12) if found == new else (1, 7))
    assert (CANCELLED in replica.scheduled()) == (found == old)
    if found == old:
        assert not [name for name in replica.files() if name.endswith(intents.COPIED)]
        install(replica, copy)
        replica.open()
    take(replica, raw(leader, 12), leader_epoch=2)
    replica.restart()
    assert copies(replica) == copies(leader)
    leader.restart()  # as the replica is: ids out of the window are forgotten then
    assert derived(replica) == derived(leader)


@pytest.mark.parametrize("seed", range(60))
def test_the_power_goes_at_any_time_and_one_of_both_logs_is_there(seed):
    old_or_new(seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def swap_without_a_note(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intents, "write_whole", lambda folder, name, parts: None)
    real = intents.save_intent

    def at_once(folder: Folder, intent: Intent) -> None:
        real(folder, intent)
        for base in intent.bases:
            folder.rename(intents.copied_name(base), segment_name(base))
            folder.sync()

    patch.setattr("waterclock.storage.replica_log.save_installation", at_once)


def note_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def unsynced(folder: Folder, intent: Intent) -> None:
        folder.create(intents.NAME).write(0, [intents._encode(intent)])

    patch.setattr("waterclock.storage.replica_log.save_installation", unsynced)


def leave_the_side_cars(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intents, "_SIDECAR", re.compile("none"))


def leave_the_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intents, "save_epochs", lambda folder, starts: None)


def forget_to_finish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "finish_installation", lambda folder: None)


def sync_no_segment(patch: pytest.MonkeyPatch) -> None:
    real = CopyWriter.end_segment

    def hasty(writer: CopyWriter, crc: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr("tests.kit.disk.SimulatedFile.sync", lambda file: None)
            real(writer, crc)

    patch.setattr(CopyWriter, "end_segment", hasty)


@pytest.mark.parametrize(
    "plant",
    [
        swap_without_a_note,
        note_in_memory_only,
        leave_the_side_cars,
        leave_the_epochs,
        forget_to_finish,
        sync_no_segment,
    ],
)
def test_each_bug_that_could_be_here_is_found(plant, monkeypatch):
    plant(monkeypatch)

    def hunt() -> None:
        for seed in range(200):
            old_or_new(seed)

    with pytest.raises((AssertionError, StorageError, BadInput)):
        hunt()
