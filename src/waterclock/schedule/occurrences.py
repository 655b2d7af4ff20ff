"""Which occurrences of a recurrence were scheduled already: a few spans of times.

They are scheduled one after the other, so one span [first, last] has them all, until somebody sets
the clock, or the node was down. A clock that is put forward leaves a gap behind it, and what was
scheduled there stands ahead of what comes next when it is put back:

    scheduled before    not scheduled     scheduled while the clock was wrong
    [............]                      [....]
                  ^ it is this time again

What is in no span comes when its time comes, whatever the clock did; what is in one never comes
twice, also if the clock is put back over it. A clock that is set very often leaves more spans than
are kept: the two become one that are nearest to each other, so that the least is left out. Which of
them are past cannot be told: a clock that is ahead takes all of them for that.
"""

from collections.abc import Sequence
from itertools import pairwise

from waterclock.model.ids import Millis
from waterclock.schedule.calendar import RecurrenceRule

SPANS_MAX = 32
"""Beyond it the two nearest become one: what lies between them is as if it were scheduled."""

Span = tuple[int, int]


def next_open(recurrence: RecurrenceRule, spans: Sequence[Span], now_ms: int) -> Millis | None:
    """Return the first occurrence after now that was not scheduled; spans are in order."""
    due_ms = recurrence.next_after(now_ms)
    for first, last in spans:
        if due_ms is not None and first <= due_ms <= last:
            due_ms = recurrence.next_after(last)
    return due_ms


def with_occurrence(recurrence: RecurrenceRule, spans: Sequence[Span], due_ms: int) -> list[Span]:
    """Return the spans with one occurrence more, which is in none of them."""
    earlier = [span for span in spans if span[1] < due_ms]
    later = [span for span in spans if span[0] > due_ms]
    first = last = due_ms
    if earlier and recurrence.next_after(earlier[-1][1]) == due_ms:
        first = earlier.pop()[0]
    if later and recurrence.next_after(due_ms) == later[0][0]:
        last = later.pop(0)[1]
    return _limited([*earlier, (first, last), *later])


def without(recurrence: RecurrenceRule, spans: Sequence[Span], due_ms: int) -> list[Span]:
    """Return the spans without one occurrence, so that it can be scheduled again."""
    found: list[Span] = []
    for first, last in spans:
        if not first <= due_ms <= last:
            found.append((first, last))
            continue
        if first < due_ms:
            found.append((first, due_ms - 1))
        after = recurrence.next_after(due_ms)
        if after is not None and after <= last:
            found.append((after, last))
    return _limited(found)


def _limited(spans: list[Span]) -> list[Span]:
    while len(spans) > SPANS_MAX:
        # Of those as near as each other the shortest: else one of them would grow and grow.
        _, _, at = min(
            (later[0] - earlier[1], later[1] - earlier[0], at)
            for at, (earlier, later) in enumerate(pairwise(spans))
        )
        spans[at : at + 2] = [(spans[at][0], spans[at + 1][1])]
    return spans
