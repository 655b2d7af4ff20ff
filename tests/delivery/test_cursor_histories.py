"""No history loses a message, and planted bugs are found (else the histories prove nothing)."""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.delivery.cursor_history import CursorHistory
from tests.kit.examples import examples
from waterclock.delivery.credits import Credit
from waterclock.delivery.cursor import Cursor
from waterclock.delivery.leases import Leases
from waterclock.delivery.read_queue import ReadQueue
from waterclock.delivery.spans import SpanMap, Terms, TimedSpans
from waterclock.model.tracker import OffsetTracker

HISTORIES = int(os.environ.get("WATERCLOCK_HISTORIES") or examples(150))
HUNT = settings(
    max_examples=5_000,  # it ends with the first that is found
    stateful_step_count=40,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_no_history_breaks_a_guarantee():
    run_state_machine_as_test(
        CursorHistory, settings=settings(max_examples=HISTORIES, stateful_step_count=40)
    )


def forget_a_failure(original):
    def give_back(self, pieces, *, until_ms):
        original(self, [(s, e, t._replace(failed=0)) for s, e, t in pieces], until_ms=until_ms)

    return give_back


def allow_one_failure_more(original):
    def fail(self, pieces, reason, **options):
        kept = [(s, e, t._replace(failed=max(0, t.failed - 1))) for s, e, t in pieces]
        return original(self, kept, reason, **options)

    return fail


def take_one_too_many(original):
    return lambda self, messages, *, bytes_each: original(
        self, messages, bytes_each=bytes_each // 2
    )


def never_free_bytes(original):
    return lambda self, messages, *, bytes: original(self, messages, bytes=0)  # noqa: A006


def wake_too_early(original):
    return lambda self, now_ms: original(self, now_ms + 90)


def lose_the_tail_of_a_split(original):
    def cut(self, start, end):
        taken = original(self, start, end)
        if len(taken) == 1 and len(self) > 2:
            original(self, end, end + 1)
        return taken

    return cut


def forget_extensions(original):
    def extend(self, ranges, *, until_ms):
        return original(self, ranges, until_ms=until_ms - 1_500)

    return extend


def mark_dead_as_done(original):
    def declare(self, dead):
        effects = original(self, dead)
        for start, end, _ in list(self.dead):
            self.dead.cut(start, end)
        return effects

    return declare


def read_done_runs_again(original):
    def advance(self, start, end):
        self._done_before.clear()
        return original(self, start, end)

    return advance


def forget_the_past(original):
    def recall(self, piece, reason):
        start, end, terms = piece
        return original(self, (start, end, Terms(0, 0, terms.bytes_each)), None)

    return recall


def listen_to_anyone(original):
    def handle(self, event, now_ms):
        if hasattr(event, "ranges") and hasattr(event, "generation") and self.generation:
            object.__setattr__(event, "generation", self.generation)
        return original(self, event, now_ms)

    return handle


def keep_handing_out_while_draining(original):
    def take(self, messages, bytes_each):
        was, self._is_draining = self._is_draining, False
        count = original(self, messages, bytes_each)
        self._is_draining = was
        return count

    return take


def acknowledge_the_offset_after(original):
    return lambda self, start, end: original(self, start, end + (end % 7 == 0))


def miss_deadlines_of_merged_spans(original):
    def put(self, start, end, value):
        SpanMap.put(self, start, end, value)
        if len(self._heap) < 3:
            self._heap.append((value.until_ms, start, end))

    return put


def skip_what_is_queued(original):
    def skip(self, start, end):
        original(self, start, end + 1)

    return skip


def leave_retries_behind(original):
    def encode(self):
        due, self._leases.due = self._leases.due, SpanMap()
        data = original(self)
        self._leases.due = due
        return data

    return encode


BUGS = [
    (Leases, "give_back", forget_a_failure),
    (Leases, "fail", allow_one_failure_more),
    (Credit, "take", take_one_too_many),
    (Credit, "give", never_free_bytes),
    (Leases, "wake", wake_too_early),
    (SpanMap, "cut", lose_the_tail_of_a_split),
    (Leases, "extend", forget_extensions),
    (Leases, "_declare_dead", mark_dead_as_done),
    (ReadQueue, "advance", read_done_runs_again),
    (Leases, "recall", forget_the_past),
    (Cursor, "handle", listen_to_anyone),
    (Cursor, "_take_credit", keep_handing_out_while_draining),
    (OffsetTracker, "add", acknowledge_the_offset_after),
    (TimedSpans, "put", miss_deadlines_of_merged_spans),
    (ReadQueue, "skip", skip_what_is_queued),
    (Cursor, "encode", leave_retries_behind),
]


@pytest.mark.parametrize(("kind", "name", "bug"), BUGS, ids=[bug[2].__name__ for bug in BUGS])
def test_a_planted_bug_is_found(monkeypatch, kind, name, bug):
    monkeypatch.setattr(kind, name, bug(getattr(kind, name)))

    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(CursorHistory, settings=HUNT)
