"""What befalls a log: damaged or stale side-cars, rotten bits, failing fsyncs and writes, no room.

Each leaves the store open and healthy again, and says so if something was lost or served wrong.
"""

from random import Random

from tests.kit.async_fsyncs import SimulatedKernel
from tests.kit.checked_store import CheckedStore
from waterclock.log.frame import HEADER_BYTES
from waterclock.log.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from waterclock.log.segment import SUFFIX
from waterclock.model.errors import Damaged, StorageFailed, StorageFull
from waterclock.model.message import Message
from waterclock.storage.rewrite import Wanted
from waterclock.storage.segment_file import SegmentFile

ROT_FLIPS = 6


class LogFaults:
    """Misfortunes for one store."""

    def __init__(self, on: CheckedStore) -> None:
        self._on = on

    def _append(self, value: bytes) -> None:
        self._on.append([Message(value, message_id=b"fault")], allow_duplicate=True)

    def damage_a_sidecar(self, random: Random) -> None:
        """Flip, cut or remove a side-car: it must change nothing."""
        self._on.close()
        names = [n for n in self._on.folder.names() if n.endswith((".index", ".ids", ".due"))]
        if names:
            name = random.choice(names)
            file = self._on.folder.open(name)
            match random.randrange(3):
                case 0:
                    self._on.folder.flip(name, random.randrange(file.size()), random.randrange(8))
                case 1:
                    file.truncate(random.randrange(file.size()))
                case _:
                    self._on.folder.remove(name)
            file.close()
        self._on.open()

    def bring_stale_sidecars_back(self, random: Random) -> None:
        """Put side-cars of before a rewrite back in their place, as a restored backup would."""
        self._on.append(
            [Message(b"v" * random.randrange(600), message_id=b"stale")], allow_duplicate=True
        )
        self._on.roll()
        self._on.close()
        sidecars = [n for n in self._on.folder.names() if n.endswith((".index", ".ids", ".due"))]
        kept = {name: self._on.bytes_of(name) for name in sidecars}
        self._on.open()
        if random.random() < 0.5:
            self._on.rewrite(Wanted(keep_from=self._on.store.segments[-1].base_offset))
        self._on.append(
            [Message(b"w" * random.randrange(600), message_id=b"stale")], allow_duplicate=True
        )
        self._on.kill()
        for name in set(kept) & set(self._on.folder.names()):
            self._on.folder.remove(name)
            file = self._on.folder.create(name)
            file.write(0, [kept[name]])
            file.close()
        self._on.open()

    def rot_a_bit(self, random: Random) -> None:
        """Flip bits of what was acknowledged: each must be seen; nothing is changed or
        served wrong."""
        places = [(s.file.name, p, z) for s in self._on.store.segments for p, z in _frame_places(s)]
        self._on.close()
        names = [n for n in self._on.folder.names() if n.endswith(SUFFIX)]
        before = {name: self._on.bytes_of(name) for name in names}
        for _ in range(ROT_FLIPS):
            name, start, size = random.choice(places)
            size = random.choice([size, min(size, HEADER_BYTES)])
            position, bit = start + random.randrange(size), random.randrange(8)
            self._on.folder.flip(name, position, bit)
            self._read_around(name)
            self._on.kill()
            assert len(self._on.bytes_of(name)) == len(before[name]), "a damaged file was cut"
            self._on.folder.flip(name, position, bit)
            assert {n: self._on.bytes_of(n) for n in names} == before, "a damaged file was changed"
        self._on.open()

    def _read_around(self, name: str) -> None:
        try:
            store = self._on.open_raw()
            seen: set[int] = set()
            for segment in store.segments:
                offset = segment.base_offset
                for frame in store.frames(offset, segment.end_offset):
                    self._on.check_frame(frame, seen)
        except Damaged:
            return
        assert store.faults or seen >= set(self._on.model.rows), f"damage to {name} went unnoticed"

    def fail_an_fsync(self, random: Random) -> None:
        """Fail an fsync, as Linux does: what it covered may be lost though it can still be read.

        Whoever ran it, perhaps the kernel by itself, was told of that, and nobody else is.
        """
        self._append(b"x")
        sync = self._on.store.begin_sync(self._on.clock.now_ms())
        if sync is None:
            return
        self._on.folder.fail_next_sync(drop=random.random() < 0.7)
        if random.random() < 0.5:
            kernel = SimulatedKernel()
            sync.begin(kernel)
            kernel.end_all()
        try:
            sync.run()
        except StorageFailed as error:
            self._on.store.finish_sync(sync, error)
        self._expect_refusal()
        if random.random() < 0.7:
            self._on.kill_the_process()
        self._on.cut_the_power(random.randrange(1 << 32))

    def fail_a_write(self, after: int) -> None:
        """Fail a write after some bytes of it: nothing of it may be left."""
        self._on.folder.fail_next_write(after_bytes=after)
        try:
            self._append(b"x" * 50)
        except StorageFailed:
            self._expect_refusal()
        self._on.kill_the_process()

    def _expect_refusal(self) -> None:
        end = self._on.store.end
        try:
            self._append(b"y")
        except StorageFailed:
            assert self._on.store.end == end
            return
        raise AssertionError("a store whose disk failed took an append")

    def fill_the_disk(self, room: int) -> None:
        """Append until there is no room: reads go on, and appends do once there is."""
        self._on.store.run_jobs()
        used = sum(
            len(self._on.bytes_of(name)) for name in self._on.folder.names() if name != "LOCK"
        )
        self._on.folder.capacity_bytes = used + room
        try:
            for _ in range(3):
                self._append(b"x" * 300)
        except StorageFull:
            self._on.check()
        self._on.folder.capacity_bytes = None


def _frame_places(segment: SegmentFile) -> list[tuple[int, int]]:
    """Return position and size of the segment header and of each frame."""
    places = [(0, SEGMENT_HEADER_BYTES)]
    for frame in segment.frames(SEGMENT_HEADER_BYTES):
        position, size = places[-1]
        places.append((position + size, frame.header.size))
    return places
