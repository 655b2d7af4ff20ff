"""What is derived from a segment is what its rows say, wherever side-cars left off."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import LogBuilder, logs, rows_in, sample
from waterclock.log.compaction import Rewriter, Survivors
from waterclock.log.frame import (
    CARRIES_IDS,
    Frame,
    FrameType,
    encode_header,
    read_frame,
    read_lone,
)
from waterclock.log.id_index.fingerprint import fingerprint
from waterclock.log.sidecars.derived import Derived
from waterclock.log.sidecars.due import NetDelta, open_scheduled
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.message import Message

BASE = 500
SEED = 17
LOGS = logs(base_offset=BASE)
ENDED = {FrameType.FIRED, FrameType.CANCEL}


def derived_from(frames: list[Frame], *, seed: int | None = SEED) -> Derived:
    derived = Derived(BASE, every_bytes=700, seed=seed)
    add_all(derived, frames, 64)
    return derived


def add_all(derived: Derived, frames: list[Frame], position: int) -> int:
    for frame in frames:
        derived.add(frame, position)
        position += frame.header.size
    return position


def entries_of(frames: list[Frame], *, is_tracked: bool = True) -> list[int]:
    """Return the id entries by hand: fingerprint, then 24 bits of how far into the segment."""
    return sorted(
        fingerprint(row.values["message_id"], SEED) << 24 | row.offset - BASE
        for row in rows_in(frames)
        if row.kind in CARRIES_IDS and row.is_tracked is is_tracked
    )


def scheduled_open_after(frames: list[Frame]) -> dict[int, int]:
    opened: dict[int, int] = {}
    for row in rows_in(frames):
        if row.kind is FrameType.SCHEDULED:
            opened[row.offset] = row.values["due_ms"]
        elif row.kind is FrameType.RESCHEDULE and row.values["scheduled_offset"] in opened:
            opened[row.values["scheduled_offset"]] = row.values["due_ms"]
        elif row.kind in ENDED:
            opened.pop(row.values["scheduled_offset"], None)
    return opened


def folded(net: NetDelta) -> dict[int, int]:
    offsets, due = open_scheduled([net])
    return dict(zip(offsets.tolist(), due.tolist(), strict=True))


@given(LOGS)
def test_ids_and_scheduled_messages_are_those_of_the_rows(log):
    derived = derived_from(log.frames)

    assert derived.entries().tracked.tolist() == entries_of(log.frames)
    assert derived.entries().untracked.tolist() == entries_of(log.frames, is_tracked=False)
    assert folded(derived.due.net()) == scheduled_open_after(log.frames)


@given(LOGS, st.data())
def test_it_goes_on_from_side_cars_as_if_it_had_read_all_frames(log, data):
    known = data.draw(st.integers(0, len(log.frames)))
    before = derived_from(log.frames[:known])
    index = SparseIndex.decode(memoryview(before.index.encode()), 700)
    due = NetDelta.decode(memoryview(b"".join(before.due.net().encode())))
    assert index is not None
    assert due is not None

    resumed = Derived(BASE, every_bytes=700, seed=SEED)
    resumed.resume(index, due, before.entries())
    position = 64 + sum(frame.header.size for frame in log.frames[:known])
    add_all(resumed, log.frames[known:], position)

    whole = derived_from(log.frames)
    assert resumed.index.encode() == whole.index.encode()
    assert resumed.due.net().encode() == whole.due.net().encode()
    for resumed_entries, entries in zip(resumed.entries(), whole.entries(), strict=True):
        assert resumed_entries.tolist() == entries.tolist()


@given(LOGS, st.integers(BASE, BASE + 30), st.sets(st.integers(BASE, BASE + 30)))
def test_ids_of_messages_that_are_gone_are_among_those_of_a_rewritten_segment(log, keep, scheduled):
    survivors = Survivors(keep, np.array(sorted(scheduled)), np.zeros(0, np.int64), seen_from_ms=0)
    written = Rewriter(survivors, "none").rewrite(log.frames)
    frames = [read_frame(encode_header(header) + bytes(body)) for header, body in written]

    assert derived_from(frames).entries().tracked.tolist() == entries_of(log.frames)


@given(st.lists(st.sampled_from(["bare", "with headers", "two"]), max_size=12))
def test_a_lone_message_is_taken_in_by_itself_as_it_is_in_its_frame(kinds):
    log = LogBuilder(base_offset=BASE)
    for number, kind in enumerate(kinds):
        bare = Message(b"value", key=b"key", message_id=b"id %d" % number)
        messages = {"bare": [bare], "with headers": [sample(number)], "two": [bare, sample(number)]}
        log.publish(messages[kind])
    found = Derived(BASE, every_bytes=700, seed=SEED)
    position, taken = 64, 0
    for frame in log.frames:
        start = frame.header.base_offset
        lone = read_lone(frame.raw, 0, base_offset=start, log_tag=frame.header.log_tag)
        if lone is not None and found.add_lone(lone, position):
            taken += 1
        else:
            found.add(frame, position)
        position += frame.header.size

    whole = derived_from(log.frames)
    assert taken == kinds.count("bare")
    assert found.index.encode() == whole.index.encode()
    for entries, wanted in zip(found.entries(), whole.entries(), strict=True):
        assert entries.tolist() == wanted.tolist()


def test_where_nobody_asks_for_repeats_no_ids_are_gathered():
    log = LogBuilder(BASE)
    log.publish([sample(1), sample(2)])

    derived = derived_from(log.frames, seed=None)

    assert [len(entries) for entries in derived.entries()] == [0, 0]
    assert len(derived.index) == 1
