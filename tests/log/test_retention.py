"""Retention takes a prefix of whole segments: all that may go, and nothing that may not."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.retention import SegmentFacts, expired_end
from waterclock.model.sections import RetentionConfig
from waterclock.model.units import KIB, MINUTE_MS

NOW_MS = 100 * MINUTE_MS
NO_CONFIG = RetentionConfig()

# Three closed segments of ten offsets and 10 KiB, last written 30, 20 and 10 minutes ago.
CLOSED = [SegmentFacts(10 * (n + 1), 10 * KIB, NOW_MS - (3 - n) * 10 * MINUTE_MS) for n in range(3)]


def end_of(
    config: RetentionConfig = NO_CONFIG, *, consumed_end: int | None = None, below: int = 0
) -> int:
    return expired_end(
        CLOSED,
        config,
        start=0,
        active_bytes=5 * KIB,
        now_ms=NOW_MS,
        consumed_end=consumed_end,
        below=below,
    )


def test_nothing_goes_unless_asked():
    assert end_of() == 0


def test_segments_go_once_their_last_message_is_older_than_the_age():
    assert end_of(RetentionConfig(age_ms=20 * MINUTE_MS - 1)) == 20
    assert end_of(RetentionConfig(age_ms=20 * MINUTE_MS)) == 10


def test_the_oldest_go_until_the_rest_fits():
    assert end_of(RetentionConfig(bytes=35 * KIB)) == 0
    assert end_of(RetentionConfig(bytes=35 * KIB - 1)) == 10
    assert end_of(RetentionConfig(bytes=25 * KIB - 1)) == 20
    assert end_of(RetentionConfig(bytes=4 * KIB)) == 30


def test_an_operator_may_name_an_offset_but_segments_stay_whole():
    assert [end_of(below=below) for below in (9, 10, 19, 20, 500)] == [0, 10, 10, 20, 30]


def test_what_a_group_has_yet_to_read_stays():
    assert [end_of(below=500, consumed_end=end) for end in (0, 9, 10, 29, 30)] == [0, 0, 10, 20, 30]


closed_segments = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)), max_size=6
)


@given(
    closed_segments,
    st.none() | st.integers(1, 9),
    st.none() | st.integers(4, 40),
    st.none() | st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 9),
)
def test_the_longest_prefix_goes_each_segment_of_which_has_a_reason(
    steps, age_minutes, kib, consumed_end, below, active_kib
):
    closed, end, time = [], 100, NOW_MS - 20 * MINUTE_MS
    for span, size_kib, minutes in steps:
        end, time = end + span, time + minutes * MINUTE_MS
        closed.append(SegmentFacts(end, size_kib * KIB, time))
    config = RetentionConfig(
        age_ms=None if age_minutes is None else age_minutes * MINUTE_MS,
        bytes=None if kib is None else kib * KIB,
    )

    def may_go(number: int) -> bool:
        facts = closed[number]
        left = sum(f.size_bytes for f in closed[number:]) + active_kib * KIB
        reasons = [
            config.age_ms is not None and NOW_MS - facts.last_append_ms > config.age_ms,
            config.bytes is not None and left > config.bytes,
            facts.end_offset <= 100 + below,
        ]
        return any(reasons) and (consumed_end is None or facts.end_offset <= 100 + consumed_end)

    kept = next((n for n in range(len(closed)) if not may_go(n)), len(closed))
    assert expired_end(
        closed,
        config,
        start=100,
        active_bytes=active_kib * KIB,
        now_ms=NOW_MS,
        consumed_end=None if consumed_end is None else 100 + consumed_end,
        below=100 + below,
    ) == (closed[kept - 1].end_offset if kept else 100)
