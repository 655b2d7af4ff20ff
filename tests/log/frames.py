"""Frames for tests: whole logs in memory, written in the order a store would write them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from waterclock.log.frame import (
    CONTROL,
    FLAG_UNTRACKED,
    Frame,
    FrameType,
    encode_header,
    header_of,
    read_frame,
)
from waterclock.log.schema import decode, encode, from_messages, schema_of
from waterclock.log.segment import log_tag
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import Compression

LOG_ID = bytes(range(16))
TAG = log_tag(LOG_ID)
NOW_MS = 1_000

IDS = st.sampled_from([b"a", b"b", b"c", b"an id of some length"])
KEYS = st.sampled_from([None, b"", b"red", b"blue"])
VALUES = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=2)


def messages(*, due: st.SearchStrategy[Millis | None] | None = None) -> st.SearchStrategy[Message]:
    """Any message; without a due time unless you say which."""
    return st.builds(
        Message,
        VALUES,
        key=KEYS,
        message_id=IDS,
        headers=HEADERS,
        due_ms=st.none() if due is None else due,
    )


def sample(number: int, *, due_ms: int | None = None, value: bytes | None = None) -> Message:
    """Return a message unlike those of other numbers."""
    return Message(
        b"value %d" % number if value is None else value,
        key=b"key %d" % (number % 3),
        message_id=b"id-%d" % number,
        headers={"number": b"%d" % number},
        due_ms=None if due_ms is None else Millis(due_ms),
    )


class LogBuilder:
    """Appends frames, each where the one before ends."""

    def __init__(self, base_offset: int = 0, *, compression: Compression = "none") -> None:
        self.frames: list[Frame] = []
        self.end = base_offset
        self.now_ms = NOW_MS
        self.flushed_end = 0
        self.scheduled: dict[int, Message] = {}
        self._compression: Compression = compression

    @property
    def data(self) -> bytes:
        """All frames back to back, as they lie in a file."""
        return b"".join(frame.raw for frame in self.frames)

    @property
    def positions(self) -> list[int]:
        """Where each frame begins in `data`."""
        ends = [0]
        for frame in self.frames:
            ends.append(ends[-1] + frame.header.size)
        return ends[:-1]

    def publish(self, batch: Sequence[Message], *, is_tracked: bool = True) -> Frame:
        """Append messages: scheduled messages if they have due times, else deliverable ones."""
        kind = FrameType.DATA if batch[0].due_ms is None else FrameType.SCHEDULED
        if kind is FrameType.SCHEDULED:
            self.scheduled |= dict(enumerate(batch, self.end))
        due = [message.due_ms or self.now_ms for message in batch]
        flags = 0 if is_tracked else FLAG_UNTRACKED
        return self._add(kind, from_messages(batch), span=len(batch), due=due, flags=flags)

    def fire(self, offsets: Sequence[int]) -> Frame:
        """Append the scheduled messages at these offsets once more, now deliverable."""
        batch = [self.scheduled[offset] for offset in offsets]
        columns = [*from_messages(batch).columns, pa.array(offsets, pa.int64())]
        rows = pa.record_batch(columns, schema=schema_of(FrameType.FIRED))
        due = [message.due_ms or 0 for message in batch]
        return self._add(FrameType.FIRED, rows, span=len(offsets), due=due)

    def cancel(self, offsets: Sequence[int]) -> Frame:
        """Append that these scheduled messages will not fire."""
        return self._add(FrameType.CANCEL, rows_of(FrameType.CANCEL, offsets), span=1)

    def reschedule(self, offsets: Sequence[int], due_ms: Sequence[int]) -> Frame:
        """Append new due times for these scheduled messages."""
        rows = rows_of(FrameType.RESCHEDULE, offsets, due_ms)
        return self._add(FrameType.RESCHEDULE, rows, span=1)

    def epoch(self) -> Frame:
        """Append the beginning of a leader epoch."""
        return self._add(FrameType.EPOCH, None, span=1)

    def noop(self, span: int) -> Frame:
        """Append a frame over offsets whose messages are gone."""
        return self._add(FrameType.NOOP, None, span=span)

    def seen(self, ids: Sequence[bytes], offsets: Sequence[int]) -> Frame:
        """Append ids of messages that are gone."""
        none = [0] * len(ids)
        rows = rows_of(FrameType.SEEN, ids, offsets, [self.now_ms] * len(ids), none)
        return self._add(FrameType.SEEN, rows, span=0)

    def _add(
        self,
        kind: FrameType,
        rows: pa.RecordBatch | None,
        *,
        span: int,
        due: Iterable[int] = (0,),
        flags: int = 0,
    ) -> Frame:
        body = b"" if rows is None else bytes(encode(rows, self._compression))
        header = header_of(
            kind,
            body,
            base_offset=self.end,
            span=span,
            rows=0 if rows is None else len(rows),
            log_tag=TAG,
            append_ms=self.now_ms,
            flushed_end=min(self.flushed_end, self.end),
            min_due_ms=min(due),
            max_due_ms=max(due),
            flags=flags,
        )
        frame = read_frame(encode_header(header) + body)
        self.frames.append(frame)
        self.end = header.end_offset
        return frame


def rows_of(kind: FrameType, *columns: Sequence[object]) -> pa.RecordBatch:
    """Return a body of this type with these columns."""
    schema = schema_of(kind)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


class Row(NamedTuple):
    """One row of a frame, where it stands and when it was appended."""

    kind: FrameType
    offset: int
    append_ms: int
    is_tracked: bool
    values: dict[str, Any]


def rows_in(frames: Iterable[Frame]) -> Iterator[Row]:
    """Yield every row, its offset worked out from the format's page alone."""
    for header, body, _ in frames:
        for index, values in enumerate(decode(header, body).to_pylist()):
            offset, append_ms = header.base_offset + index, header.append_ms
            if header.type is FrameType.SEEN:
                offset, append_ms = values.pop("offset"), values.pop("append_ms")
            elif header.type in CONTROL:
                offset = header.base_offset
            elif header.flags & 1:
                offset = header.base_offset + values.pop("offset_delta")
            yield Row(header.type, offset, append_ms, header.is_tracked, values)


PLAIN = [
    Message(b"one", key=b"red", message_id=b"a"),
    Message(b"two", key=b"blue", message_id=b"b", headers={"trace": b"1", "x": b""}),
    Message(None, key=b"red", message_id=b"c"),
    Message(b"", key=b"", message_id=b"an id of some length"),
    Message(b"no key", message_id=b"a", headers={}),
]
SCHEDULED = [
    replace(message, due_ms=Millis(due)) for message in PLAIN for due in (2_000, 2_500, 3_000)
]
BATCHES = {
    "data": st.lists(st.sampled_from(PLAIN), min_size=1, max_size=4),
    "scheduled": st.lists(st.sampled_from(SCHEDULED), min_size=1, max_size=4),
}
STEPS = st.sampled_from(
    ["data", "scheduled", "scheduled", "fire", "cancel", "move", "move", "epoch"]
)


@st.composite
def logs(draw: st.DrawFn, *, base_offset: int = 0) -> LogBuilder:
    """A log with frames of every type a store writes, times rising, scheduled messages ended at
    most once."""
    log = LogBuilder(base_offset)
    ended: set[int] = set()
    for kind in draw(st.lists(STEPS, max_size=12)):
        later_ms = draw(st.sampled_from([0, 1, 500]))
        log.now_ms += later_ms
        log.flushed_end = log.end if later_ms else log.flushed_end
        opened = [offset for offset in log.scheduled if offset not in ended]
        if kind in BATCHES:
            log.publish(draw(BATCHES[kind]), is_tracked=kind == "scheduled" or draw(st.booleans()))
        elif kind == "epoch":
            log.epoch()
        elif opened:
            chosen = draw(st.lists(st.sampled_from(opened), min_size=1, max_size=3, unique=True))
            if kind == "move":
                log.reschedule(chosen, [2_000 + offset * 377 % 1_000 for offset in chosen])
            else:
                (log.fire if kind == "fire" else log.cancel)(chosen)
                ended.update(chosen)
    return log
