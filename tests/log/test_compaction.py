"""A rewrite keeps what must live where it was, remembers ids that must be, and leaves no gap."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import LogBuilder, Row, logs, rows_in, sample
from waterclock.log import compaction
from waterclock.log.compaction import Int64s, Rewriter, Survivors, latest_offsets
from waterclock.log.frame import CARRIES_IDS, Frame, FrameType, encode_header, read_frame
from waterclock.log.sidecars.endings import Ending
from waterclock.model.message import Message
from waterclock.model.sections import Compression

MESSAGES = {FrameType.DATA, FrameType.FIRED}
BASE = 100
LOGS = logs(base_offset=BASE)
TIMES = st.sampled_from([0, 1_000, 1_001, 1_500, 1_501, 2_000, 10_000])


def array(values: list[int]) -> Int64s:
    return np.array(values, dtype=np.int64)


NOTHING = array([])
# Half of all offsets, so that most frames lose some rows and keep some, and lose more later.
OFFSETS = st.sampled_from(
    [
        array([offset for offset in range(BASE, BASE + 48) if random.random() < share])
        for random in [Random(1)]
        for share in (0, 0.3, 0.5, 0.7, 0.9, 1)
        for _ in range(10)
    ]
)
DROP_ALL = Survivors(1 << 40, NOTHING, NOTHING, seen_from_ms=None)

SURVIVORS = st.builds(
    Survivors,
    keep_from=st.integers(BASE, BASE + 30),
    open_scheduled=OFFSETS,
    ended_scheduled=OFFSETS,
    seen_from_ms=st.none() | TIMES,
    cancelled=OFFSETS,
    latest=st.none() | OFFSETS,
    tombstones_from_ms=TIMES,
)


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    """Let ids seen fill a frame, and keys be reduced to their latest, now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "SEEN_ROWS_MAX", 4)
        patch.setattr(compaction, "LATEST_ROWS_MIN", 3)
        yield


def rewritten(
    frames: list[Frame], survivors: Survivors, compression: Compression = "none"
) -> list[Frame]:
    written = Rewriter(survivors, compression).rewrite(frames)
    return [read_frame(encode_header(header) + bytes(body)) for header, body in written]


def survives(row: Row, wanted: Survivors) -> bool:
    """Say whether a row must stay, one rule at a time."""
    values = row.values
    if row.kind is FrameType.SCHEDULED:
        return row.offset in wanted.open_scheduled
    if row.kind is FrameType.RESCHEDULE:
        return values["scheduled_offset"] in wanted.open_scheduled
    if row.kind is FrameType.SEEN:
        return False
    if values.get("scheduled_offset") in wanted.ended_scheduled.tolist():
        return True
    if row.kind is FrameType.CANCEL:
        return False
    if row.offset >= wanted.keep_from:
        return True
    if wanted.latest is None:
        return False
    is_spent = values["value"] is None and row.append_ms < wanted.tombstones_from_ms
    return (values["key"] is None or row.offset in wanted.latest) and not is_spent


def kept_rows(frames: list[Frame]) -> list[Row]:
    return [row for row in rows_in(frames) if row.kind is not FrameType.SEEN]


Seen = tuple[int, bytes, int, bool, int]


def seen_rows(frames: list[Frame]) -> list[Seen]:
    found = [row for row in rows_in(frames) if row.kind is FrameType.SEEN]
    return sorted(
        (
            row.offset, row.values["message_id"], row.append_ms, row.is_tracked,
            row.values["ending"],
        )
        for row in found
    )  # fmt: skip


def to_remember(frames: list[Frame], wanted: Survivors) -> list[Seen]:
    """Return the ids whose rows go but which must be remembered, and how they ended."""
    if wanted.seen_from_ms is None:
        return []
    found = []
    for row in rows_in(frames):
        is_meant = row.kind in CARRIES_IDS and row.append_ms >= wanted.seen_from_ms
        # Of what was delivered with `allow_duplicate` nothing is left.
        is_meant &= row.is_tracked or row.kind is not FrameType.DATA
        if is_meant and not survives(row, wanted):
            ending = int(row.kind is FrameType.SCHEDULED and row.offset in wanted.cancelled)
            message_id = row.values["message_id"]
            found.append((row.offset, message_id, row.append_ms, row.is_tracked, ending))
    return sorted(found)


def check_chain(before: list[Frame], after: list[Frame]) -> None:
    """Fail unless the frames span the same offsets, densely, at times that never step back."""
    old, new = [frame.header for frame in before], [frame.header for frame in after]
    assert [h.base_offset for h in new[:1]] == [h.base_offset for h in old[:1]]
    assert [h.end_offset for h in new[-1:]] == [h.end_offset for h in old[-1:]]
    assert all(one.end_offset == next_.base_offset for one, next_ in pairwise(new))
    assert all(one.append_ms <= next_.append_ms for one, next_ in pairwise(new))
    assert {h.log_tag for h in new} == {h.log_tag for h in old}


def check_seen_places(frames: list[Frame]) -> None:
    """Fail unless ids seen stand behind the frame that spans their offsets, sorted."""
    spanning = range(0)
    for frame in frames:
        if frame.header.type is not FrameType.SEEN:
            spanning = range(frame.header.base_offset, frame.header.end_offset)
            continue
        offsets = [row.offset for row in rows_in([frame])]
        assert all(offset in spanning for offset in offsets)
        assert offsets == sorted(offsets)


@given(LOGS, SURVIVORS, st.sampled_from(["none", "lz4", "zstd"]))
def test_what_must_live_stays_where_it_was_and_nothing_else(log, survivors, compression):
    after = rewritten(log.frames, survivors, compression)

    check_chain(log.frames, after)
    assert kept_rows(after) == [row for row in rows_in(log.frames) if survives(row, survivors)]
    epochs = [frame for frame in log.frames if frame.header.type is FrameType.EPOCH]
    assert [frame for frame in after if frame.header.type is FrameType.EPOCH] == epochs


@given(LOGS, SURVIVORS)
def test_ids_that_must_be_remembered_stand_behind_the_frame_that_spans_them(log, survivors):
    after = rewritten(log.frames, survivors)

    assert seen_rows(after) == to_remember(log.frames, survivors)
    check_seen_places(after)


@given(LOGS, SURVIVORS)
def test_rewriting_again_changes_nothing(log, survivors):
    once = rewritten(log.frames, survivors)

    assert rewritten(once, survivors) == once


@given(LOGS, SURVIVORS, OFFSETS, st.integers(0, 10), st.sampled_from([0, 1, 500]))
def test_a_later_rewrite_takes_more_as_if_it_had_been_the_first(log, first, gone, later, forget_ms):
    then = replace(
        first,
        keep_from=first.keep_from + later,
        open_scheduled=np.setdiff1d(first.open_scheduled, gone),
        ended_scheduled=np.setdiff1d(first.ended_scheduled, gone),
        latest=None if first.latest is None else np.setdiff1d(first.latest, gone),
        seen_from_ms=None if first.seen_from_ms is None else first.seen_from_ms + forget_ms,
    )

    after = rewritten(rewritten(log.frames, first), then)

    check_chain(log.frames, after)
    check_seen_places(after)
    assert kept_rows(after) == kept_rows(rewritten(log.frames, then))
    assert seen_rows(after) == to_remember(log.frames, then)


@given(LOGS, SURVIVORS)
def test_open_scheduled_messages_survive_with_every_word_about_their_time(log, survivors):
    scheduled = sorted(log.scheduled)
    everything_open = replace(survivors, open_scheduled=array(scheduled))

    after = kept_rows(rewritten(log.frames, everything_open))

    assert [row.offset for row in after if row.kind is FrameType.SCHEDULED] == scheduled
    moved = [row for row in rows_in(log.frames) if row.kind is FrameType.RESCHEDULE]
    assert [row for row in after if row.kind is FrameType.RESCHEDULE] == moved


@given(LOGS, SURVIVORS)
def test_a_frame_of_which_all_lives_keeps_its_bytes(log, survivors):
    after = {frame.raw.tobytes() for frame in rewritten(log.frames, survivors)}

    for frame in log.frames:
        rows = list(rows_in([frame]))
        if rows and all(survives(row, survivors) for row in rows):
            assert frame.raw.tobytes() in after


@given(LOGS, SURVIVORS)
def test_due_times_of_rows_that_stay_lie_within_those_of_their_frame(log, survivors):
    for frame in rewritten(log.frames, survivors):
        if frame.header.rows and "value" in next(rows_in([frame])).values:
            due = [row.values["due_ms"] or row.append_ms for row in rows_in([frame])]
            assert frame.header.min_due_ms <= min(due) <= max(due) <= frame.header.max_due_ms


def test_dropped_frames_become_one_and_their_ids_stand_behind_it():
    log = LogBuilder(BASE)
    log.publish([sample(0)])
    log.publish([sample(1, due_ms=5_000)], is_tracked=False)
    log.publish([sample(2, due_ms=5_000)])
    log.publish([sample(3)])

    after = rewritten(log.frames, replace(DROP_ALL, keep_from=BASE + 3, seen_from_ms=0))

    assert [(frame.header.type.name, frame.header.span) for frame in after] == [
        ("NOOP", 3),
        ("SEEN", 0),
        ("SEEN", 0),
        ("DATA", 1),
    ]
    assert seen_rows(after) == [
        (BASE, b"id-0", 1_000, True, 0),
        (BASE + 1, b"id-1", 1_000, False, 0),
        (BASE + 2, b"id-2", 1_000, True, 0),
    ]


def test_of_delivered_messages_that_dedup_does_not_know_no_id_is_left():
    log = LogBuilder(BASE)
    log.publish([sample(n) for n in range(3)], is_tracked=False)

    (left,) = rewritten(log.frames, replace(DROP_ALL, seen_from_ms=0))

    assert left.header.type is FrameType.NOOP


def test_how_a_scheduled_message_ended_stands_beside_its_id():
    log = LogBuilder(BASE)
    log.publish([sample(n, due_ms=5_000) for n in range(3)])
    wanted = replace(DROP_ALL, seen_from_ms=0, cancelled=array([100]), expired=array([102]))

    once = rewritten(log.frames, wanted)
    twice = rewritten(once, replace(DROP_ALL, seen_from_ms=0))

    for frames in (once, twice):
        assert [(offset, ending) for offset, *_, ending in seen_rows(frames)] == [
            (100, Ending.CANCELLED), (101, Ending.DELIVERED), (102, Ending.EXPIRED),
        ]  # fmt: skip


def test_ids_seen_at_different_times_stand_sorted_behind_their_frame():
    log = LogBuilder(BASE)
    log.publish([sample(n, due_ms=5_000) for n in range(5)])
    first, later = array([100, 102, 104]), array([102])

    once = rewritten(log.frames, replace(DROP_ALL, open_scheduled=first, seen_from_ms=0))
    twice = rewritten(once, replace(DROP_ALL, open_scheduled=later, seen_from_ms=0))

    assert [row.offset for row in rows_in(twice)] == [102, 100, 101, 103, 104]


def test_a_log_of_which_nothing_lives_is_one_frame():
    log = LogBuilder(BASE)
    for number in range(10):
        log.publish([sample(number)])

    (only,) = rewritten(log.frames, DROP_ALL)

    assert repr(only) == "<Frame NOOP [100, 110) 72 B>"
    assert rewritten([], DROP_ALL) == []


@given(st.lists(LOGS, max_size=1))
def test_the_latest_message_of_each_key_is_the_last_one_deliverable(chosen):
    frames = [frame for log in chosen for frame in log.frames]
    latest: dict[bytes | None, int] = {}
    for row in rows_in(frames):
        if row.kind in MESSAGES:
            latest[row.values["key"]] = row.offset

    assert latest_offsets(frames).tolist() == sorted(latest.values())


def test_the_latest_of_many_keys_in_many_frames_are_found_also_after_a_rewrite():
    log = LogBuilder()
    for start in range(0, 60, 3):
        keys = [b"%d" % (n * n % 17) for n in range(start, start + 3)]
        log.publish([Message(b"x", key=key, message_id=b"i") for key in keys])
    latest = latest_offsets(log.frames)

    after = rewritten(log.frames, replace(DROP_ALL, latest=latest))

    assert latest.tolist() == sorted({n * n % 17: n for n in range(60)}.values())
    assert [row.offset for row in kept_rows(after)] == latest.tolist()
    assert latest_offsets(after).tolist() == latest.tolist()
