"""However the clock is set, no occurrence is promised twice, and what comes next is the next."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.schedule.calendar import IntervalRule, Recurrence
from waterclock.schedule.promised import SPANS_MAX, Span, next_open, with_promised

SECOND_MS = 1_000
START_MS = 1_700_000_000_000


def recurrence(jitter_ms: int) -> Recurrence:
    return Recurrence(
        rule=IntervalRule(SECOND_MS, START_MS), start_ms=START_MS, jitter_ms=jitter_ms
    )


@given(
    moves=st.lists(st.integers(-100_000, 100_000), max_size=40),
    jitter_ms=st.sampled_from([0, 400, 5_000]),
)
def test_the_next_open_one_is_the_first_that_was_not_promised(moves, jitter_ms):
    rule, now_ms = recurrence(jitter_ms), START_MS
    spans: list[Span] = []
    promised: set[int] = set()
    for move in moves:
        now_ms = max(START_MS, now_ms + move)
        found = next_open(rule, spans, now_ms)
        assert found is not None
        assert found not in promised
        if len(promised) < SPANS_MAX:  # beyond, gaps between the earliest may be given up
            expected = rule.next_after(now_ms)
            while expected in promised:
                assert expected is not None
                expected = rule.next_after(expected)
            assert found == expected
        spans = with_promised(rule, spans, found)
        promised.add(found)
        assert spans == sorted(spans)
        assert len(spans) <= SPANS_MAX
        assert all(any(a <= one <= b for a, b in spans) for one in promised)


def test_what_is_promised_one_after_the_other_is_one_span():
    rule = recurrence(0)
    spans: list[Span] = []
    for at in (1, 2, 7, 8, 3, 4, 5, 6):
        spans = with_promised(rule, spans, START_MS + at * SECOND_MS)
    assert spans == [(START_MS + SECOND_MS, START_MS + 8 * SECOND_MS)]
