"""Appending one message that is due now: the same as a batch of one, without what batches need.

A batch with keys of very many partitions falls into one message for each of them. Then what a call
costs counts, and not what a byte does: a third of an append was made up of arrays of length one.
"""

from typing import TYPE_CHECKING

import numpy as np

from waterclock.log.append import Appended, find_repeat
from waterclock.log.batch import Batch
from waterclock.log.frame import FLAG_EXPIRES, FLAG_UNTRACKED, HEADER_BYTES, encode_lone
from waterclock.model.ids import Millis, Offset

if TYPE_CHECKING:
    from waterclock.storage.partition_store import PartitionStore


def append_lone(
    store: "PartitionStore", batch: Batch, *, now_ms: int, allow_duplicate: bool
) -> Appended:
    """Write a batch of one message, or say where the one is that it repeats."""
    message_id = batch.first_id
    offset, is_new = write_lone(
        store,
        message_id,
        batch.body,
        fp=0 if store.ids is None else store.ids.fingerprint(message_id),
        now_ms=now_ms,
        flags=FLAG_UNTRACKED * allow_duplicate | FLAG_EXPIRES * batch.may_expire,
    )
    durable_at = Offset(offset + 1)
    if is_new:
        return Appended(range(offset, durable_at), None, durable_at)
    return Appended(np.array([offset]), np.array([False]), durable_at)


def write_lone(
    store: "PartitionStore",
    message_id: bytes,
    body: bytes | memoryview,
    *,
    fp: int,
    now_ms: int,
    flags: int = 0,
) -> tuple[Offset, bool]:
    """Write one message that is due now; return its offset, or that of the one it repeats.

    `fp` is the fingerprint of its id in this log. You must have asked `check_appendable`.
    """
    ids = store.ids
    append_ms = store.log_time_ms
    if append_ms < now_ms:
        append_ms = Millis(now_ms)
    is_tracked = not flags & FLAG_UNTRACKED
    if ids is not None and is_tracked and ids.might_know(fp):
        oldest_ms = append_ms - store.dedup.window_ms
        repeated = find_repeat(ids, message_id, fp, store.reader.ids, oldest_ms=oldest_ms)
        if repeated is not None:
            return Offset(repeated), False
    try:
        store.make_room(HEADER_BYTES + len(body), 1, now_ms)
        segment = store.segments[-1]
        base = segment.end_offset
        raw = encode_lone(
            body, base, segment.log_tag, append_ms, store.epoch, store.plan.flushed_end, flags
        )
        store.write_lone(raw, append_ms)
        if ids is not None and is_tracked:
            ids.insert_one(fp, base)
        elif ids is not None:
            ids.remember_one(fp, base, is_tracked=False)
    except BaseException as error:
        # By hand: to enter and leave a `with` is a tenth of all this.
        store.in_step.note(error)
        raise
    return base, True
