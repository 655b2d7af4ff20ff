"""The sparse index finds what a reader of the whole segment finds, and starts no later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.frames import TAG
from waterclock.log.frame import FrameHeader, FrameType
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.ids import Epoch, Millis, Offset

START = 64
EVERY_BYTES = st.sampled_from([1, 100, 300, 10_000])

Placed = tuple[FrameHeader, int]
"""A frame's header and where the frame lies."""


def header(base: int, *, span: int, append_ms: int, body: int) -> FrameHeader:
    kind = FrameType.DATA if span else FrameType.SEEN
    return FrameHeader(
        kind, 0, Offset(base), span, span, Epoch(0), 0, Millis(append_ms),
        Millis(0), Millis(0), body, 0, TAG,
    )  # fmt: skip


def segment_of(steps: list[tuple[int, int, int]]) -> list[Placed]:
    """Return headers back to back: times never step back, some frames span nothing."""
    placed: list[Placed] = []
    base, append_ms, position = 1_000, 100, START
    for later_ms, span, body in steps:
        append_ms += later_ms
        span = span if placed else 1
        made = header(base, span=span, append_ms=append_ms, body=body)
        placed.append((made, position))
        base, position = made.end_offset, position + made.size
    return placed


STEPS = st.tuples(
    st.sampled_from([0, 1, 7]), st.sampled_from([0, 1, 3]), st.sampled_from([0, 64, 400])
)
SEGMENTS = st.lists(STEPS, max_size=15).map(segment_of)


def index_of(segment: list[Placed], every_bytes: int) -> SparseIndex:
    index = SparseIndex(every_bytes)
    for made, position in segment:
        index.add(made, position)
    return index


def found_from(segment: list[Placed], start: int | None) -> list[Placed]:
    """Return the frames a reader meets who starts at a position, which must be a frame's."""
    positions = [position for _, position in segment]
    assert start in positions
    return segment[positions.index(start or 0) :]


@given(SEGMENTS, EVERY_BYTES)
def test_a_reader_sent_by_offset_meets_the_frame_that_holds_it_soon(segment, every_bytes):
    index = index_of(segment, every_bytes)

    assert index.position_of_offset(999) is None
    for made, position in segment:
        for offset in range(made.base_offset, made.end_offset):
            start = index.position_of_offset(offset)
            assert (made, position) in found_from(segment, start)
            assert position - start < every_bytes


@given(SEGMENTS, EVERY_BYTES)
def test_a_reader_sent_by_time_meets_the_first_frame_at_or_after_it(segment, every_bytes):
    index = index_of(segment, every_bytes)

    times = {made.append_ms + shift for made, _ in segment for shift in (-1, 0)}
    for time in times:
        first = next(place for place in segment if place[0].append_ms >= time)
        assert first in found_from(segment, index.position_of_append_time(time))
    if not segment:
        assert index.position_of_append_time(0) is None


@given(SEGMENTS, EVERY_BYTES)
def test_entries_are_as_far_apart_as_asked(segment, every_bytes):
    index = index_of(segment, every_bytes)
    bytes_total = sum(made.size for made, _ in segment)

    assert len(index) <= bytes_total // every_bytes + 1
    assert index.first_append_ms == (segment[0][0].append_ms if segment else None)


@given(SEGMENTS, EVERY_BYTES, st.integers(0, 20))
def test_an_index_goes_on_from_its_side_car_as_if_it_had_never_been_away(
    segment, every_bytes, saved_at
):
    early = index_of(segment[:saved_at], every_bytes)
    body = early.encode()

    loaded = SparseIndex.decode(memoryview(body), every_bytes)

    assert loaded is not None
    assert loaded.encode() == body
    for made, position in segment[saved_at:]:
        loaded.add(made, position)
    assert loaded.encode() == index_of(segment, every_bytes).encode()


def test_a_side_car_holds_columns_of_int64_one_after_the_other():
    index = SparseIndex(100)
    for base, position in [(5, 64), (6, 136), (7, 208)]:
        index.add(header(base, span=1, append_ms=base * 2, body=0), position)

    columns = memoryview(index.encode()).cast("q").tolist()

    assert columns == [5, 7, 64, 208, 10, 14]


@pytest.mark.parametrize("size", [1, 8, 23, 25, 40])
def test_a_body_that_cannot_be_columns_is_refused(size):
    assert SparseIndex.decode(memoryview(bytes(size)), 100) is None


def test_a_copy_does_not_see_later_frames():
    index = index_of([(header(0, span=1, append_ms=1, body=0), START)], 100)
    before = index.encode()
    copy = index.copy()

    index.add(header(1, span=1, append_ms=1, body=0), 500)
    index.add(header(2, span=1, append_ms=1, body=0), 572)

    assert (len(index), len(copy)) == (2, 1)
    assert copy.encode() == before
