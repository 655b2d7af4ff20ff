"""Which occurrences of a recurrence were promised already: a few spans of times.

They are promised one after the other, so one span [first, last] has them all, until somebody sets
the clock, or the node was down. A clock that is put forward leaves a gap behind it, and what was
promised there stands ahead of what comes next when it is put back:

    promised before    not promised     promised while the clock was wrong
    [............]                      [....]
                  ^ it is this time again

What is in no span comes when its time comes, whatever the clock did; what is in one never comes
twice, also if the clock is put back over it.
"""

from collections.abc import Sequence

from waterclock.model.ids import Millis
from waterclock.schedule.calendar import Recurrence

SPANS_MAX = 8
"""Beyond it the two earliest become one: what lies between them is as if it were promised."""

Span = tuple[int, int]


def next_open(recurrence: Recurrence, spans: Sequence[Span], now_ms: int) -> Millis | None:
    """Return the first occurrence after now that was not promised; spans are in order."""
    due_ms = recurrence.next_after(now_ms)
    for first, last in spans:
        if due_ms is not None and first <= due_ms <= last:
            due_ms = recurrence.next_after(last)
    return due_ms


def with_promised(recurrence: Recurrence, spans: Sequence[Span], due_ms: int) -> list[Span]:
    """Return the spans with one occurrence more, which is in none of them."""
    earlier = [span for span in spans if span[1] < due_ms]
    later = [span for span in spans if span[0] > due_ms]
    first = last = due_ms
    if earlier and recurrence.next_after(earlier[-1][1]) == due_ms:
        first = earlier.pop()[0]
    if later and recurrence.next_after(due_ms) == later[0][0]:
        last = later.pop(0)[1]
    found = [*earlier, (first, last), *later]
    while len(found) > SPANS_MAX:
        found[:2] = [(found[0][0], found[1][1])]
    return found
