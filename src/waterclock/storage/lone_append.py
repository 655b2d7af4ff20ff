"""Appending one message that is due now: the same as a batch of one, without what batches need.

A batch with keys of very many partitions falls into one message for each of them. Then what a call
costs counts, and not what a byte does: a third of an append was made up of arrays of length one.
"""

from typing import TYPE_CHECKING

import numpy as np

from waterclock.log.append import Appended, find_repeat
from waterclock.log.batch import Batch
from waterclock.log.frame import (
    FLAG_EXPIRES,
    FLAG_UNTRACKED,
    HEADER_BYTES,
    FrameType,
    encode_header,
    header_of,
)
from waterclock.model.ids import Offset

if TYPE_CHECKING:
    from waterclock.storage.partition_store import PartitionStore


def append_lone(
    store: "PartitionStore", batch: Batch, *, now_ms: int, allow_duplicate: bool
) -> Appended:
    """Write a batch of one message, or say where the one is that it repeats."""
    ids, body = store.ids, batch.body
    append_ms = max(now_ms, store.log_time_ms)
    fp = 0
    if ids is not None:
        message_id = batch.first_id
        fp = ids.fingerprint(message_id)
        if not allow_duplicate:
            oldest_ms = append_ms - store.dedup.window_ms
            repeated = find_repeat(ids, message_id, fp, store.reader.ids, oldest_ms=oldest_ms)
            if repeated is not None:
                return Appended(np.array([repeated]), np.array([False]), Offset(repeated + 1))
    with store.in_step():
        store.make_room(HEADER_BYTES + len(body), 1, now_ms)
        segment = store.segments[-1]
        base = segment.end_offset
        header = header_of(
            FrameType.DATA,
            body,
            base_offset=base,
            span=1,
            rows=1,
            log_tag=segment.log_tag,
            append_ms=append_ms,
            epoch=store.epoch,
            flushed_end=store.flushed_end,
            min_due_ms=append_ms,
            max_due_ms=append_ms,
            flags=FLAG_UNTRACKED * allow_duplicate | FLAG_EXPIRES * batch.may_expire,
        )
        store.write_frames([header], [encode_header(header), body])
        if ids is not None:
            ids.remember_one(fp, base, is_tracked=not allow_duplicate)
    return Appended(range(base, base + 1), None, header.end_offset)
