"""A partition's log as one replica of it: frames come from its leader, and are taken as they are.

What is derived from a log (ids, timers, the sparse index) is derived here as it is on append, so
that a replica can lead at any moment. Beside the log stands the table of its leader epochs, by
which it is compared with others'.
"""

from waterclock.cluster.replication.lineage import EpochEnd, EpochStart, Lineage
from waterclock.log.foreign_frames import (
    ForeignFrame,
    LogEnd,
    read_foreign,
    with_flushed_end,
)
from waterclock.log.frame import CARRIES_IDS, FrameHeader, FrameType, encode_header
from waterclock.log.schema import row_offsets
from waterclock.log.sidecars.derived import note_timers
from waterclock.model.errors import BadInput, Closed, OffsetOutOfRange, PartitionFaulty
from waterclock.model.ids import Epoch, Offset
from waterclock.storage.epoch_file import load_epochs, save_epochs
from waterclock.storage.folders.folder import Bytes
from waterclock.storage.installation.intent import Intent
from waterclock.storage.installation.intent import save_intent as save_installation
from waterclock.storage.installation.log_copy import LogCopy
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.truncation import CUT_GENERATION, save_intent


class ReplicaLog:
    """The log of a replica. Its store has one owner, who calls all of this too."""

    def __init__(self, store: PartitionStore) -> None:
        """Take up a store that was just opened. Raises PartitionFaulty if its epochs are lost."""
        self.store = store
        store.commit(0)  # nothing is shown before it is known to be committed
        self._committed_end = Offset(0)
        self._is_cut = False
        found = load_epochs(store.folder)
        self._starts = self._epochs_of(found)
        if self._starts != (found or ()):
            # An epoch that never came to be must not be taken for one when the log reaches there.
            self._save(self._starts)

    def _epochs_of(self, found: tuple[EpochStart, ...] | None) -> tuple[EpochStart, ...]:
        """Return the epochs that the log has, given the table that was found beside it."""
        store = self.store
        lineage = Lineage.of(found or (), store.end)
        is_bare = store.start == store.end > 0
        if is_bare and found is not None:
            # It was installed without a frame: its leader's retention had taken all of them.
            store.epoch = lineage.last.epoch
        if lineage.last.epoch == store.epoch and not (is_bare and found is None):
            return lineage.starts
        if store.start or any(segment.header.generation for segment in store.segments):
            raise PartitionFaulty(
                f"epoch {store.epoch} is not in the epoch table, and the log was rewritten: "
                "remove this replica and let it be copied anew"
            )
        starts: list[EpochStart] = []
        for segment in store.segments:
            for header in segment.headers():
                if header.epoch > (starts[-1].epoch if starts else 0):
                    starts.append(EpochStart(header.epoch, header.base_offset))
        return tuple(starts)

    def __repr__(self) -> str:
        return f"<ReplicaLog epoch {self.store.epoch}, {self.store!r}>"

    @property
    def end(self) -> Offset:
        """One past the last offset written."""
        return self.store.end

    @property
    def flushed_end(self) -> Offset:
        """Everything below this is durable here."""
        return self.store.flushed_end

    @property
    def flushed_last(self) -> EpochEnd:
        """The epoch of the last frame that is flushed, and `flushed_end`."""
        return Lineage.of(self._starts, self.store.flushed_end).last

    @property
    def stream_start(self) -> Offset:
        """From here on frames are as their leader wrote them: what lies below was rewritten."""
        for segment in reversed(self.store.segments):
            # One that was cut has the frames that it had; see `truncation`.
            if segment.header.generation % CUT_GENERATION:
                return segment.end_offset
        return self.store.start

    @property
    def is_faulty(self) -> bool:
        """Something is damaged, or the disk failed: it neither votes nor leads."""
        return bool(self.store.faults) or self.store.has_failed

    @property
    def lineage(self) -> Lineage:
        """The leader epochs of the log as it is now, flushed or not."""
        return Lineage.of(self._starts, self.store.end)

    def commit(self, end: int) -> None:
        """Show readers what a majority has flushed, everything below `end`; it never steps back."""
        self._check_uncut()
        self._committed_end = max(self._committed_end, Offset(end))
        self.store.commit(end)

    def begin_epoch(self, epoch: Epoch, *, now_ms: int) -> Offset:
        """Begin to lead with a frame of its own; return the offset to be flushed."""
        self._check_uncut()
        self.store.check_appendable()
        if epoch <= self.store.epoch:
            raise BadInput(f"epoch {epoch} is not after {self.store.epoch}")
        self._save(self.lineage.begun(epoch, self.store.end))
        return self.store.begin_epoch(epoch, now_ms=now_ms)

    def _save(self, starts: tuple[EpochStart, ...]) -> None:
        with self.store.in_step:
            save_epochs(self.store.folder, starts)
        self._starts = starts

    def append_frames(
        self, data: bytes | memoryview, *, leader_epoch: Epoch, now_ms: int
    ) -> Offset:
        """Write frames of the leader at the log's end; return the offset to be flushed.

        Raises BadInput, and has written nothing, unless all of them are whole and follow on here.
        When there was no room for all of them, the log has some.
        """
        self._check_uncut()
        store = self.store
        store.check_appendable()
        end = LogEnd(store.end, store.epoch, store.log_time_ms, store.segments[-1].log_tag)
        groups = read_foreign(data, end, leader_epoch=leader_epoch)
        self._note_epochs([first.frame.header for first, *_ in groups])
        for group in groups:
            self._append(group, now_ms)
        return store.end

    def _note_epochs(self, headers: list[FrameHeader]) -> None:
        """Make the epochs that begin in these frames durable, before the frames are written."""
        beginning = [header for header in headers if header.type is FrameType.EPOCH]
        if not beginning and not self._has_unbegun():
            return
        lineage = self.lineage
        for header in beginning:
            starts = lineage.begun(header.epoch, header.base_offset)
            lineage = Lineage(starts, header.end_offset)
        self._save(lineage.starts)

    def _has_unbegun(self) -> bool:
        """Tell whether the table has an epoch whose frame found no room, from the log's end on: it
        must not be taken for that of what is written there next."""
        return bool(self._starts) and self._starts[-1].offset >= self.store.end

    def _append(self, group: list[ForeignFrame], now_ms: int) -> None:
        """Write a frame and the `seen` frames behind it, which speak of it, into one segment."""
        store = self.store
        size = sum(frame.header.size for frame, _ in group)
        store.make_room(size, group[0].frame.header.span, now_ms)
        headers = [with_flushed_end(frame.header, store.flushed_end) for frame, _ in group]
        parts: list[Bytes] = []
        for header, (frame, _) in zip(headers, group, strict=True):
            parts += (encode_header(header), frame.body)
        with store.in_step:
            store.write_frames(headers, parts)
            for foreign in group:
                self._note_ids(foreign)
                note_timers(store.active_delta, foreign.frame)

    def _note_ids(self, foreign: ForeignFrame) -> None:
        ids, header = self.store.ids, foreign.frame.header
        if ids is None or header.type not in CARRIES_IDS or not header.rows:
            return
        rows = foreign.rows
        is_dense = header.type is not FrameType.SEEN and not header.is_sparse
        ids.remember(
            ids.fingerprints(rows.column("message_id")),
            range(header.base_offset, header.end_offset) if is_dense else row_offsets(header, rows),
            is_tracked=header.is_tracked,
        )

    def truncate(self, end: int) -> None:
        """Give up everything from `end` on, where this log's lineage leaves its leader's.

        You must close the store then, write nothing more to it, and open the log again: that cuts
        it. Whoever waits for an offset of this store must not be answered by the next one, in which
        other messages may come to it.
        """
        self._check_uncut()
        store = self.store
        store.check_appendable()
        if end < self._committed_end:
            raise BadInput(f"offsets below {self._committed_end} are committed, {end} is one")
        if not store.start <= end < store.end:
            raise OffsetOutOfRange(end, start=store.start, end=store.end)
        frame = store.segments[store.reader.segment_at(end)].frame_at(end)
        if frame.header.base_offset != end:
            raise BadInput(f"offset {end} is within {frame!r}")
        store.sync()
        with store.in_step:
            save_intent(store.folder, end)
        self._is_cut = True

    # Segments as they are

    def copy(self) -> LogCopy:
        """Return what a replica needs that lacks frames which cannot be streamed any more."""
        end = self.stream_start
        below = [segment for segment in self.store.segments if segment.end_offset <= end]
        segments = [(each.base_offset, each.view()) for each in below if not each.is_empty]
        return LogCopy(end, Lineage.of(self._starts, end).starts, tuple(segments))

    def install(self, intent: Intent) -> None:
        """Give this log up for a copy that lies beside it, as its `CopyWriter` has finished it.

        You must close the store then, write nothing more to it, and open the log again: that
        replaces it.
        """
        self._check_uncut()
        if not self.is_faulty and intent.end < self.store.end:
            raise BadInput(f"the copy ends at {intent.end}, before {self.store.end}")
        with self.store.in_step:
            save_installation(self.store.folder, intent)
        self._is_cut = True

    def _check_uncut(self) -> None:
        if self._is_cut:
            raise Closed("the log is being cut or replaced: open it again")
