import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterclock.delivery.spans import SpanMap, Terms, TimedSpans, joined, ranges_of

spans = st.tuples(st.integers(0, 30), st.integers(-1, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(st.tuples(st.booleans(), spans, st.sampled_from("xy"))))
def test_spans_are_a_dictionary_of_offsets(steps):
    found: SpanMap[str] = SpanMap()
    model: dict[int, str] = {}

    for is_put, (start, end), value in steps:
        if is_put and start < end and not any(at in model for at in range(start, end)):
            found.put(start, end, value)
            model.update(dict.fromkeys(range(start, end), value))
        else:
            taken = [(at, v) for s, e, v in found.cut(start, end) for at in range(s, e)]
            assert taken == [(at, model.pop(at)) for at in range(start, end) if at in model]
        found.check_invariants()
        assert [(at, v) for s, e, v in found for at in range(s, e)] == sorted(model.items())


@given(st.sets(st.integers(0, 38)), st.lists(spans))
def test_ranges_are_parted_by_what_has_a_span(covered, ranges):
    found: SpanMap[None] = SpanMap()
    for at in covered:
        found.put(at, at + 1, None)

    inside, outside = found.part(ranges)

    named = {at for start, end in ranges for at in range(start, end)}
    assert [at for s, e in inside for at in range(s, e)] == sorted(named & covered)
    assert [at for s, e in outside for at in range(s, e)] == sorted(named - covered)


@given(st.lists(st.tuples(spans, st.integers(0, 20)), max_size=30), st.integers(0, 20))
def test_spans_end_at_their_time_and_not_before(puts, now_ms):
    timed = TimedSpans()
    model: dict[int, int] = {}
    for (start, end), until_ms in puts:
        timed.cut(start, end)
        for at in range(start, end):
            model[at] = until_ms
        if start < end:
            timed.put(start, end, Terms(0, until_ms, 0))
        timed.check_invariants()

    ended = [at for s, e, _ in timed.expire(now_ms) for at in range(s, e)]

    assert ended == sorted(at for at, until_ms in model.items() if until_ms <= now_ms)
    timed.check_invariants()
    left = [until_ms for until_ms in model.values() if until_ms > now_ms]
    deadline = timed.next_deadline()
    assert deadline == min(left, default=None)


@given(st.lists(st.integers(0, 40)))
def test_single_offsets_become_the_fewest_ranges(offsets):
    ranges = ranges_of(np.array(offsets, np.int64))

    assert [at for s, e in ranges for at in range(s, e)] == sorted(set(offsets))
    assert joined(ranges) == tuple(ranges)


def test_outdated_deadlines_do_not_pile_up():
    timed = TimedSpans()

    for at in range(10_000):
        timed.put(at, at + 1, Terms(0, 30_000 + at, 0))
        timed.cut(at, at + 1)

    assert len(timed._heap) < 100
