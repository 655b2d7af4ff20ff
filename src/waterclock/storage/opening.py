"""Opening a partition: find out what is there, believe what holds, mend what may be mended.

In order: take the lock; finish a truncation or an installation; look at every name; check each
segment's header and place; load side-cars or read the segment; read the last segment behind its
side-cars to its end; tell torn from rotten (`waterclock.log.recovery`); cut off what is torn; write
once more what is not proven to be on disk; make that durable, each log for itself or many together
(`open_unsettled`).

That last step is for the crash after a failed fsync: the kernel may show pages it never wrote and
will not write again ("fsyncgate"). Rewriting them makes them dirty, so that the fsync before the
first acknowledgement means what it says.

Nothing that is not understood is removed; only unfinished files of our own (`.tmp`, `.install`)
are.
"""

import logging
import re
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from waterclock.log.id_index.index import IdIndex
from waterclock.log.id_index.runs import IdEntries
from waterclock.log.recovery import Damage, Scan, scan
from waterclock.log.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from waterclock.log.segment import (
    SUFFIX,
    SegmentHeader,
    decode_segment_header,
    parse_segment_name,
    segment_name,
)
from waterclock.log.sidecars.derived import Derived
from waterclock.log.sidecars.due import DueDelta, NetDelta
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.errors import ForeignFile, PartitionFaulty, StorageFull
from waterclock.model.ids import Millis, Offset
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.epoch_file import NAME as EPOCH_TABLE
from waterclock.storage.folders.folder import TEMPORARY, File, Folder
from waterclock.storage.fsyncs import Sync
from waterclock.storage.installation.intent import COPIED, finish_installation
from waterclock.storage.installation.intent import NAME as INSTALLATION
from waterclock.storage.installation.lost_log import NAME as LOST
from waterclock.storage.installation.lost_log import damage_of_lost
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.recovery_point import NAME as RECOVERY_POINT
from waterclock.storage.recovery_point import load_recovery_point, save_recovery_point
from waterclock.storage.segment_file import SegmentFile, create_segment
from waterclock.storage.sidecar_files import load_sidecars, save_sidecars, vouched_end
from waterclock.storage.truncation import NAME as TRUNCATION
from waterclock.storage.truncation import finish_truncation

_SIDECAR = re.compile(r"(\d{20})\.(index|ids|due)")
_UNFINISHED = re.compile(
    rf"\d{{20}}\.seg\{COPIED}|(\d{{20}}\.(seg(\.damaged\.\d+)?|index|ids|due)"
    rf"|{RECOVERY_POINT}|{EPOCH_TABLE}|{TRUNCATION}|{INSTALLATION}|{LOST})\{TEMPORARY}"
)
_INTENTS = frozenset({TRUNCATION, INSTALLATION})
_NOTES = frozenset({RECOVERY_POINT, EPOCH_TABLE, LOST}) | _INTENTS
events = logging.getLogger(__name__)

_TOO_SHORT = "these offsets were flushed, but the log ends before them"


class Opened(NamedTuple):
    """A segment with what was derived from it."""

    segment: SegmentFile
    ids: IdEntries | None
    due: NetDelta
    covered: Offset
    """Side-cars vouch that everything below was durable."""
    scan: Scan
    """What reading behind them found."""


def open_partition(
    folder: Folder, *, log: LogConfig, dedup: DedupConfig, now_ms: int, new_log_id: bytes
) -> PartitionStore:
    """Open the log in `folder`, or begin one there with the identity `new_log_id` (16 bytes).

    The store may be faulty (`store.faults`): readable, but refusing appends.
    """
    opening = _Opening(folder, log, dedup, now_ms, new_log_id, settles=True)
    return opening.run()


def open_unsettled(
    folder: Folder, *, log: LogConfig, dedup: DedupConfig, now_ms: int, new_log_id: bytes
) -> tuple[PartitionStore, Sync]:
    """Open a log as above; you must run the fsync, and it succeed, before anything else is done.

    So the logs of a node can share one. The recovery point stays where it was until there is a
    reason to move it: it only may lag behind.
    """
    opening = _Opening(folder, log, dedup, now_ms, new_log_id, settles=False)
    store = opening.run()
    return store, Sync(store.segments[-1].file, store.end, folder=folder)


class _Opening:
    """The steps of one opening, sharing what they find."""

    def __init__(
        self,
        folder: Folder,
        log: LogConfig,
        dedup: DedupConfig,
        now_ms: int,
        new_log_id: bytes,
        *,
        settles: bool,
    ) -> None:
        assert len(new_log_id) == 16
        self.folder = folder
        self.log = log
        self.dedup = dedup
        self.now_ms = now_ms
        self.new_log_id = new_log_id
        self.settles = settles
        self.faults: list[Damage] = []

    def run(self) -> PartitionStore:
        self.folder.lock()
        try:
            return self._run()
        except BaseException:
            self.folder.close()
            raise

    def _run(self) -> PartitionStore:
        names = self.folder.names()
        if not _INTENTS.isdisjoint(names):
            finish_truncation(self.folder)
            finish_installation(self.folder)
            names = self.folder.names()
        bases = self._survey(names)
        if LOST in names:
            self.faults.append(damage_of_lost())
        if not bases:
            self._begin()
            bases = [Offset(0)]
        self._check_headers(bases)
        # A process that died between renaming a segment and syncing the folder leaves a name that
        # a power cut may still take, with all that would be acknowledged in it from now on.
        if self.settles:
            self.folder.sync()
        opened = [self._open_sealed(*pair) for pair in pairwise(bases)]
        opened.append(self._open_last(bases[-1]))
        return self._assemble(opened)

    def _survey(self, names: list[str]) -> list[Offset]:
        """Look at every name; return the base offsets of the segments, in order."""
        for name in names:
            if _UNFINISHED.fullmatch(name):
                self.folder.remove(name)
        bases = sorted(parse_segment_name(name) for name in names if name.endswith(SUFFIX))
        foreign = [name for name in names if not _is_ours(name)]
        if not bases:
            ours = [name for name in names if _SIDECAR.fullmatch(name) or name in _NOTES - {LOST}]
            if ours:
                raise PartitionFaulty(
                    f"the segments are gone, but {ours[0]} is there: restore them"
                )
            if foreign:
                raise ForeignFile(
                    f"the folder holds no log but has {foreign[0]} in it: choose an empty folder"
                )
        for name in names:
            sidecar = _SIDECAR.fullmatch(name)
            # Retention removes side-cars first, so this segment was not taken by retention.
            if bases and sidecar and int(sidecar[1]) < bases[0]:
                lost = segment_name(int(sidecar[1]))
                raise PartitionFaulty(f"{lost} is gone, but {name} is there: restore it")
        return bases

    def _begin(self) -> None:
        header = SegmentHeader(self.new_log_id, Offset(0), 0, Millis(self.now_ms))
        index = SparseIndex(self.log.index_every_bytes)
        begun = create_segment(self.folder, header, index, self.faults, settles=self.settles)
        begun.file.close()

    def _check_headers(self, bases: list[Offset]) -> None:
        """Raise ForeignFile unless all are segments of one log, before anything is mended."""
        if len(bases) == 1:
            return  # it is looked at when it is opened
        first: SegmentHeader | None = None
        for base in bases:
            file, header = self._open_file(base)
            file.close()
            first = first or header
            if header.log_id != first.log_id:
                names = f"{segment_name(first.base_offset)} and {file.name}"
                raise ForeignFile(f"{names} are segments of different logs: separate them")

    def _open_file(self, base: Offset) -> tuple[File, SegmentHeader]:
        name = segment_name(base)
        file = self.folder.open(name)
        head = file.view(0, min(file.size(), SEGMENT_HEADER_BYTES))
        return file, decode_segment_header(name, head)

    def _open(self, base: Offset) -> Opened:
        """Open one segment, from its side-cars as far as they hold, then by reading on."""
        file, header = self._open_file(base)
        every_bytes = self.log.index_every_bytes
        segment = SegmentFile(file, header, SparseIndex(every_bytes), self.faults)
        seed = id_seed(header.log_id) if self.dedup.enabled else None
        derived = Derived(base, every_bytes=every_bytes, seed=seed)
        sidecars = load_sidecars(
            self.folder, file, header, every_bytes=every_bytes, with_ids=self.dedup.enabled
        )
        if sidecars is not None:
            derived.resume(sidecars.index, sidecars.due, sidecars.ids)
            segment.end_offset = sidecars.coverage.end_offset
            segment.end_position = sidecars.coverage.end_position
            segment.last = sidecars.last
            segment.last_header_crc = sidecars.coverage.last_header_crc
        covered = segment.end_offset
        data = file.view(0, file.size())
        try:
            found = scan(
                data,
                segment.end_position,
                covered,
                segment.log_tag,
                derived.add,
                derived.add_lone,
            )
        except ForeignFile as error:
            raise ForeignFile(f"{file.name}: {error}") from error
        segment.index = derived.index
        segment.end_position, segment.end_offset = found.end_position, found.end_offset
        if found.last is not None:
            segment.last, segment.last_header_crc = found.last, found.last_header_crc
        ids = None if seed is None else derived.entries()
        return Opened(segment, ids, derived.due.net(), covered, found)

    def _open_sealed(self, base: Offset, following: Offset) -> Opened:
        """Open a segment that a later one follows: it was durable to its end, so damage is rot."""
        opened = self._open(base)
        segment = opened.segment
        if segment.end_offset > following:
            raise ForeignFile(f"{segment.file.name} reaches into the segment at {following}")
        damage = opened.scan.damage_before(
            following, size=segment.file.size(), reason="the end of the segment is missing"
        )
        self.faults += damage
        segment.end_offset = following
        if opened.covered < following and not damage:
            self._save(opened)
        return opened

    def _open_last(self, base: Offset) -> Opened:
        """Open the last segment: tell torn from rotten, and mend it if nothing durable is lost."""
        opened = self._open(base)
        segment, found = opened.segment, opened.scan
        recovery_point = load_recovery_point(self.folder)
        vouched = max(opened.covered, vouched_end(self.folder, segment.header))
        proven = max(recovery_point or 0, vouched, found.proven_end)
        # One that has rotted itself may have vouched for everything.
        rotten = found.damage if recovery_point is None else found.rotten(proven)
        if rotten:
            end = Offset(max(proven, found.damage[-1].end))
            self.faults += found.damage_before(end, size=segment.file.size(), reason=_TOO_SHORT)
            return opened
        torn = found.torn_at(proven)
        if torn is not None:
            events.info("torn_tail_cut folder=%r end_offset=%d", self.folder, segment.end_offset)
            segment.file.truncate(torn.position)
            segment.file.sync()
            segment.file.close()
            opened = self._open(base)
            segment = opened.segment
            assert not opened.scan.damage
        if proven > segment.end_offset:
            self.faults += opened.scan.damage_before(
                Offset(proven), size=segment.file.size(), reason=_TOO_SHORT
            )
            return opened
        self._settle(segment, Offset(proven))
        if segment.is_empty:
            # Earlier releases reserved space before there was a frame, and so may a failed write.
            segment.give_back()
        return opened

    def _settle(self, segment: SegmentFile, proven: Offset) -> None:
        """Make sure of the frames that are there but not proven to be durable."""
        if proven == segment.end_offset:
            return
        position = segment.position_of(proven)
        segment.file.write(position, [bytes(segment.view()[position:])])
        if not self.settles:
            return
        segment.file.sync()
        with suppress(StorageFull):
            save_recovery_point(self.folder, segment.end_offset)

    def _save(self, opened: Opened) -> None:
        """Save side-cars that had to be built again; without room for them, do without."""
        segment = opened.segment
        with suppress(StorageFull):
            save_sidecars(
                self.folder, segment.coverage, index=segment.index, ids=opened.ids, due=opened.due
            )

    def _assemble(self, opened: list[Opened]) -> PartitionStore:
        *sealed, active = opened
        ids = None
        if self.dedup.enabled:
            ids = IdIndex(id_seed(active.segment.header.log_id), self.dedup.ids_max)
            for found in sealed:
                assert found.ids is not None
                ids.load(found.segment.base_offset, found.ids)
            ids.open_segment(active.segment.base_offset)
            assert active.ids is not None
            ids.resume(active.ids)
        store = PartitionStore(
            self.folder,
            log=self.log,
            dedup=self.dedup,
            segments=[found.segment for found in opened],
            ids=ids,
            deltas={found.segment.base_offset: found.due for found in sealed},
            active_delta=DueDelta.resume(active.segment.base_offset, active.due),
            faults=self.faults,
        )
        store.trim_ids()
        return store


def id_seed(log_id: bytes) -> int:
    """Return the seed of a log's id fingerprints; it is on disk, in side-cars."""
    return int.from_bytes(log_id[:8], "little")


def _is_ours(name: str) -> bool:
    if name.endswith(SUFFIX) or name in _NOTES or name == "LOCK":
        return True
    return bool(_SIDECAR.fullmatch(name) or _UNFINISHED.fullmatch(name))
