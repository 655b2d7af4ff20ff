"""A partition's log as one replica of it: frames come from its leader, and are taken as they are.

What is derived from a log (ids, timers, the sparse index) is derived here as it is on append, so
that a replica can lead at any moment.
"""

from waterclock.log.foreign_frames import LogEnd, read_foreign, with_flushed_end
from waterclock.log.frame import CARRIES_IDS, Frame, encode_header
from waterclock.log.schema import decode, row_offsets
from waterclock.log.sidecars.derived import note_timers
from waterclock.model.ids import Epoch, Offset
from waterclock.storage.folders.folder import Bytes
from waterclock.storage.partition_store import PartitionStore


class ReplicaLog:
    """The log of a replica. Its store has one owner, who calls all of this too."""

    def __init__(self, store: PartitionStore) -> None:
        self.store = store

    def __repr__(self) -> str:
        return f"<ReplicaLog epoch {self.store.epoch}, {self.store!r}>"

    def append_frames(
        self, data: bytes | memoryview, *, leader_epoch: Epoch, now_ms: int
    ) -> Offset:
        """Write frames of the leader at the log's end; return the offset to be flushed.

        Raises BadInput, and has written nothing, unless all of them are whole and follow on here.
        When there was no room for all of them, the log has some.
        """
        store = self.store
        store.check_appendable()
        end = LogEnd(store.end, store.epoch, store.log_time_ms, store.segments[-1].log_tag)
        for group in read_foreign(data, end, leader_epoch=leader_epoch):
            self._append(group, now_ms)
        return store.end

    def _append(self, group: list[Frame], now_ms: int) -> None:
        """Write a frame and the `seen` frames behind it, which speak of it, into one segment."""
        store = self.store
        size = sum(frame.header.size for frame in group)
        store.make_room(size, group[0].header.span, now_ms)
        headers = [with_flushed_end(frame.header, store.flushed_end) for frame in group]
        parts: list[Bytes] = []
        for header, frame in zip(headers, group, strict=True):
            parts += (encode_header(header), frame.body)
        with store.in_step():
            store.write_frames(headers, parts)
            for frame in group:
                self._note_ids(frame)
                note_timers(store.active_delta, frame)

    def _note_ids(self, frame: Frame) -> None:
        ids, header = self.store.ids, frame.header
        if ids is None or header.type not in CARRIES_IDS or not header.rows:
            return
        batch = decode(header, frame.body)
        fps = ids.fingerprints(batch.column("message_id"))
        ids.remember(fps, row_offsets(header, batch), is_tracked=header.is_tracked)
