"""Logs for tests of reading: frames of every kind, and the rows that they hold."""

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from waterclock.log.frame import FLAG_SPARSE, FrameType, encode_header, header_of
from waterclock.log.schema import encode, schema_of

PARTITION = 3
_KINDS = {FrameType.DATA: "data", FrameType.SCHEDULED: "scheduled", FrameType.FIRED: "fired"}


class FrameLog(NamedTuple):
    """A log: its frames, and every row of it, as dicts by column name."""

    frames: list[bytes]
    rows: list[dict[str, Any]]
    end: int


class FramePlan(NamedTuple):
    """What a frame is to be."""

    kind: FrameType
    span: int
    gone: frozenset[int]
    """Of its offsets, counted from the first; none: it is dense."""
    compression: Any
    keys: list[bytes | None]


KEYS = st.none() | st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"\xffa"])


@st.composite
def frame_plans(draw: st.DrawFn) -> FramePlan:
    kind = draw(
        st.sampled_from(
            [FrameType.DATA, FrameType.DATA, FrameType.FIRED, FrameType.SCHEDULED, FrameType.NOOP]
        )
    )
    span = draw(st.integers(1, 12))
    gone = draw(st.frozensets(st.integers(0, span - 1)))
    keys = draw(st.lists(KEYS, min_size=span, max_size=span))
    return FramePlan(kind, span, gone, draw(st.sampled_from(["none", "lz4", "zstd"])), keys)


def log_of(plans: list[FramePlan]) -> FrameLog:
    """Build a log."""
    frames, rows, offset = [], [], 0
    for number, plan in enumerate(plans):
        append_ms = 1_000 + number
        if plan.kind is FrameType.NOOP:
            header = header_of(
                plan.kind, b"", base_offset=offset, span=plan.span, rows=0, log_tag=0,
                append_ms=append_ms,
            )  # fmt: skip
            frames.append(encode_header(header))
        else:
            made = [
                _row(plan, offset, delta, append_ms)
                for delta in range(plan.span)
                if delta not in plan.gone
            ]
            frames.append(_frame(plan, made, offset, append_ms))
            rows += made
        offset += plan.span
    return FrameLog(frames, rows, offset)


def _row(plan: FramePlan, base: int, delta: int, append_ms: int) -> dict[str, Any]:
    offset = base + delta
    is_fired = plan.kind is FrameType.FIRED
    return {
        "partition": PARTITION,
        "offset": offset,
        "message_id": b"id-%d" % offset,
        "key": plan.keys[delta],
        "value": None if offset % 7 == 0 else b"v" * (offset % 5),
        "headers": [("h", b"%d" % offset)] if offset % 3 == 0 else None,
        "append_time": append_ms,
        "due_time": None if plan.kind is FrameType.DATA else append_ms - 1,
        "fire_time": append_ms if is_fired else None,
        "kind": _KINDS[plan.kind],
    }


def _frame(plan: FramePlan, rows: list[dict[str, Any]], base: int, append_ms: int) -> bytes:
    flags = FLAG_SPARSE if plan.gone else 0
    columns = {name: [row[name] for row in rows] for name in ("message_id", "key", "value")}
    columns["headers"] = [row["headers"] for row in rows]
    columns["due_ms"] = [row["due_time"] for row in rows]
    columns["scheduled_offset"] = [0] * len(rows)
    columns["offset_delta"] = [row["offset"] - base for row in rows]
    schema = schema_of(plan.kind, flags)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    body = encode(batch, plan.compression)
    header = header_of(
        plan.kind, body, base_offset=base, span=plan.span, rows=len(rows), log_tag=0,
        append_ms=append_ms, flags=flags,
    )  # fmt: skip
    return encode_header(header) + bytes(body)
