"""However the clock is set, no occurrence is scheduled twice, and what comes next is the next."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.schedule.calendar import IntervalRule, RecurrenceRule
from waterclock.schedule.occurrences import SPANS_MAX, Span, next_open, with_occurrence, without

SECOND_MS = 1_000
START_MS = 1_700_000_000_000


def recurrence(jitter_ms: int) -> RecurrenceRule:
    return RecurrenceRule(
        rule=IntervalRule(SECOND_MS, START_MS), start_ms=START_MS, jitter_ms=jitter_ms
    )


@given(
    moves=st.lists(st.integers(-100_000, 100_000), max_size=40),
    jitter_ms=st.sampled_from([0, 400, 5_000]),
)
def test_the_next_open_one_is_the_first_that_was_not_scheduled(moves, jitter_ms):
    rule, now_ms = recurrence(jitter_ms), START_MS
    spans: list[Span] = []
    scheduled: set[int] = set()
    for move in moves:
        now_ms = max(START_MS, now_ms + move)
        found = next_open(rule, spans, now_ms)
        assert found is not None
        assert found not in scheduled
        if len(scheduled) < SPANS_MAX:  # beyond, the smallest gaps may be given up
            expected = rule.next_after(now_ms)
            while expected in scheduled:
                assert expected is not None
                expected = rule.next_after(expected)
            assert found == expected
        spans = with_occurrence(rule, spans, found)
        scheduled.add(found)
        assert spans == sorted(spans)
        assert len(spans) <= SPANS_MAX
        assert all(any(a <= one <= b for a, b in spans) for one in scheduled)


def test_beyond_the_limit_the_nearest_become_one():
    rule = recurrence(0)
    at = [0, 1_000, 1_010, *(2_000 + 100 * n for n in range(SPANS_MAX - 2))]
    spans: list[Span] = []
    for one in at:
        spans = with_occurrence(rule, spans, START_MS + one * SECOND_MS)
    assert len(spans) == SPANS_MAX
    assert spans[:2] == [
        (START_MS, START_MS),
        (START_MS + 1_000 * SECOND_MS, START_MS + 1_010 * SECOND_MS),
    ]


@given(
    spans=st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True),
    which=st.integers(0, 11),
    jitter_ms=st.sampled_from([0, 400]),
)
def test_what_is_taken_out_is_open_again_and_nothing_else(spans, which, jitter_ms):
    rule = recurrence(jitter_ms)
    scheduled: list[int] = []
    found: list[Span] = []
    for number in spans:
        due_ms = rule.next_after(START_MS + number * SECOND_MS + jitter_ms)
        assert due_ms is not None
        if due_ms not in scheduled:
            scheduled.append(due_ms)
            found = with_occurrence(rule, found, due_ms)
    out = scheduled[which % len(scheduled)]

    without_it = without(rule, found, out)

    assert next_open(rule, without_it, out - 1) == out
    rest = [one for one in scheduled if one != out]
    assert all(any(a <= one <= b for a, b in without_it) for one in rest)
    assert with_occurrence(rule, without_it, out) == found


def test_what_is_scheduled_one_after_the_other_is_one_span():
    rule = recurrence(0)
    spans: list[Span] = []
    for at in (1, 2, 7, 8, 3, 4, 5, 6):
        spans = with_occurrence(rule, spans, START_MS + at * SECOND_MS)
    assert spans == [(START_MS + SECOND_MS, START_MS + 8 * SECOND_MS)]
