"""The progress of a group in a partition as bytes: what is done, and what had failed how often.

Drawn in `docs/formats/progress.md`. A range has a past if it failed before, waits for a time, or is
dead and not yet known to be written. A message that is merely leased for the first time has none:
after a restart it is handed out as if it were new.

Changing a byte here: raise VERSION, keep reading the old one.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from waterclock.delivery.events import Reason
from waterclock.delivery.spans import SpanMap
from waterclock.model.errors import BadInput
from waterclock.model.tracker import OffsetTracker

MAGIC = b"\xf3WCg"
VERSION = 1

_HEAD = struct.Struct("<4sBI")
_LENGTH = struct.Struct("<I")
ROW = np.dtype(
    [("start", "<i8"), ("end", "<i8"), ("until", "<i8"), ("failed", "u1"), ("reason", "u1")]
)
Rows = npt.NDArray[np.void]
_REASONS = {0, *Reason}
_TRACKER_RUNS_MAX = 1 << 40
"""No limit of the tracker's own: the cursor hands out too little for it to be reached, and what was
done under a larger `runs_max` must still be read."""


class Past(NamedTuple):
    """What happened to the messages of a range so far."""

    failed: int
    until_ms: int
    reason: Reason | None


def empty_tracker(committed: int) -> OffsetTracker:
    """Return a tracker for a group that begins at an offset."""
    return OffsetTracker(committed, runs_max=_TRACKER_RUNS_MAX)


def rows_of(spans: SpanMap[Past]) -> Rows:
    """Return what happened to ranges as rows."""
    starts, ends, values = spans.columns()
    return made_rows(
        starts,
        ends,
        until=[past.until_ms for past in values],
        failed=[past.failed for past in values],
        reason=[past.reason or 0 for past in values],
    )


def made_rows(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    *,
    until: list[int] | int,
    failed: list[int],
    reason: list[int] | int,
) -> Rows:
    """Return rows from their columns."""
    rows = np.empty(len(starts), ROW)
    rows["start"], rows["end"] = starts, ends
    rows["until"], rows["failed"], rows["reason"] = until, failed, reason
    return rows


def merged(rows: Rows) -> Rows:
    """Return rows in order, those that touch and say the same made one."""
    rows = rows[np.argsort(rows["start"])]
    if len(rows) < 2:
        return rows
    before, after = rows[:-1], rows[1:]
    goes_on = before["end"] == after["start"]
    for name in ("until", "failed", "reason"):
        goes_on &= before[name] == after[name]
    result: Rows = rows[np.append(True, ~goes_on)]
    result["end"] = rows["end"][np.append(~goes_on, True)]
    return result


def encode_progress(tracker: OffsetTracker, *rows: Rows, shift_ms: int = 0) -> bytes:
    """Return progress as bytes; what waits for a time waits for one that much later."""
    done, past = tracker.encode(), merged(np.concatenate(rows))
    past["until"][past["until"] > 0] += shift_ms
    body = _LENGTH.pack(len(done)) + done + past.tobytes()
    return _HEAD.pack(MAGIC, VERSION, crc32c(body)) + body


def decode_progress(
    data: bytes, *, log_end: int | None = None
) -> tuple[OffsetTracker, list[tuple[int, int, Past]]]:
    """Return what `encode_progress` was given, below `log_end`, or raise BadInput."""
    if len(data) < _HEAD.size + _LENGTH.size:
        raise BadInput("the progress of a group is cut short")
    magic, version, crc = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BadInput("not the progress of a group, or of a version this release cannot read")
    body = data[_HEAD.size :]
    if crc32c(body) != crc:
        raise BadInput("the progress of a group fails its checksum")
    (length,) = _LENGTH.unpack_from(body)
    rest = body[_LENGTH.size + length :]
    if len(body) < _LENGTH.size + length or len(rest) % ROW.itemsize:
        raise BadInput("the progress of a group is cut short")
    tracker = decode_tracker(body[_LENGTH.size : _LENGTH.size + length])
    past = _past_of(np.frombuffer(rest, ROW))
    if log_end is None:
        return tracker, past
    kept = [(start, min(end, log_end), what) for start, end, what in past if start < log_end]
    return below(log_end, tracker), kept


def decode_tracker(data: bytes) -> OffsetTracker:
    """Return a tracker that was encoded, or raise BadInput."""
    return OffsetTracker.decode(data, runs_max=_TRACKER_RUNS_MAX)


def below(end: int, tracker: OffsetTracker) -> OffsetTracker:
    if tracker.end <= end:
        return tracker
    kept = empty_tracker(min(tracker.committed, end))
    for start, run_end in tracker.runs():
        if start < end:
            kept.add(start, min(run_end, end))
    return kept


def _past_of(rows: np.ndarray) -> list[tuple[int, int, Past]]:
    past = []
    at = 0
    for start, end, until_ms, failed, reason in rows.tolist():
        if not at <= start < end or reason not in _REASONS:
            raise BadInput("the progress of a group contradicts itself")
        past.append((start, end, Past(failed, until_ms, Reason(reason) if reason else None)))
        at = end
    return past
