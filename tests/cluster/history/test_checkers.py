"""Each checker finds what it is for, and nothing in a run that is right."""

from collections.abc import Iterable

import msgspec
import pytest

from tests.cluster.history.checkers import Bounds, judge
from tests.cluster.history.events import (
    Changed,
    Copied,
    Dropped,
    Ended,
    Event,
    Healed,
    Led,
    Polled,
    Published,
    Row,
    dump,
    load,
)

P = "orders/0"
BOUNDS = Bounds(heal_ms=1_000)


def published(message: str, offset: int | None = None, **other: object) -> Published:
    return msgspec.structs.replace(Published(message, P, 100, 110, "acked", offset), **other)


def polled(*rows: Row, reader: str = "r", at_ms: int = 900, offset: int = 0) -> Polled:
    next_offset = max((row.offset for row in rows), default=offset - 1) + 1
    return Polled(reader, "n1", P, at_ms, offset, next_offset, rows)


GOOD: list[Event] = [
    published("a", 1),
    published("b", 2, due_ms=300),
    published("c", 3, due_ms=400),
    published("d", outcome="unknown"),
    Changed("c", 150, 160, "acked"),
    Changed("b", 150, 160, "acked", due_ms=350),
    polled(Row(1, "data", "a"), Row(2, "scheduled", "b"), at_ms=200),
    polled(Row(3, "scheduled", "c"), Row(5, "fired", "b"), at_ms=400, offset=3),
    Led("n1:x", P, 1, 10),
    Led("n2:x", P, 2, 20),
    Copied("n1:x", P, ((0, "e"), (1, "f"))),
    Copied("n2:x", P, ((1, "f"), (2, "g"))),
    Healed(1_000),
    Ended(9_000),
]


def kinds(events: Iterable[Event]) -> set[str]:
    return set(judge(events, BOUNDS))


def test_nothing_is_found_in_a_run_that_is_right() -> None:
    assert str(judge(GOOD, BOUNDS)) == "nothing found"


def test_events_are_read_as_they_were_written() -> None:
    assert load(dump(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("finding", "event"),
    [
        ("lost write", published("e", 7)),
        ("false ack", published("e", 1)),
        ("duplicate", polled(Row(1, "data", "a"), Row(6, "data", "a"), reader="s")),
        ("duplicate", polled(Row(5, "fired", "b"), Row(6, "fired", "b"), reader="s", offset=5)),
        ("inconsistent offsets", polled(Row(1, "data", "d"), reader="s")),
        ("nonmonotonic poll", polled(Row(2, "scheduled", "b"), offset=2)),
        ("nonmonotonic poll", polled(Row(2, "scheduled", "b"), reader="s", offset=3)),
        ("early fire", polled(Row(6, "data", "b"), reader="s", at_ms=299, offset=6)),
        ("skipped poll", polled(Row(5, "fired", "b"), reader="s", offset=3)),
        ("invented", polled(Row(8, "data", "nobody's"), reader="s", offset=8)),
        ("early fire", polled(Row(5, "fired", "b"), reader="s", at_ms=349, offset=5)),
        ("early fire", polled(Row(6, "fired", "a"), reader="s", offset=6)),
        ("fired after cancel", polled(Row(6, "fired", "c"), reader="s", offset=6)),
        ("unfired", published("f", 6, due_ms=500)),
        ("two leaders", Led("n3:x", P, 2, 30)),
        ("copies differ", Copied("n3:x", P, ((2, "h"),))),
        ("stuck", published("g", 6, outcome="unknown", until_ms=None)),
        ("stuck", published("g", 6, outcome="unknown", until_ms=2_001)),
        ("stuck", Changed("b", 200, None, "unknown", due_ms=350)),
    ],
)
def test_one_event_that_breaks_a_guarantee_is_found(finding: str, event: Event) -> None:
    assert finding in kinds([*GOOD, event])


def test_a_refused_message_that_is_read_was_not_refused() -> None:
    events = [*GOOD, published("h", outcome="refused")]
    assert kinds(events) == set()
    assert kinds([*events, polled(Row(8, "data", "h"), reader="s", offset=8)]) == {"invented"}


def test_retention_may_take_what_is_old() -> None:
    events = [*GOOD, published("e", 0), polled(Row(5, "fired", "b"), reader="s", offset=3)]
    assert kinds(events) == {"lost write", "skipped poll"}
    assert kinds([*events, Dropped(P, 5)]) == set()


def test_what_waited_for_the_leader_alone_may_be_lost() -> None:
    lost = [published("e", 7, acks="leader"), published("f", 1, acks="leader", due_ms=500)]
    assert kinds([*GOOD, *lost]) == set()
    assert kinds([*GOOD, published("e", 7, acks="all")]) == {"lost write"}


def test_what_may_have_been_cancelled_may_fire_or_not() -> None:
    events = [*GOOD, published("f", 6, due_ms=500), Changed("f", 200, 300, "unknown")]
    rows = [Row(6, "scheduled", "f"), Row(7, "fired", "f")]
    assert kinds([*events, polled(*rows[:1], reader="s", offset=6)]) == set()
    assert kinds([*events, polled(*rows, reader="s", offset=6)]) == set()


def test_a_message_fires_at_the_earliest_time_it_may_have() -> None:
    changes = [Changed("b", 200, 210, "unknown", due_ms=800)]
    assert kinds([*GOOD, *changes]) == set()
    changes += [Changed("b", 220, 230, "acked", due_ms=700)]
    assert kinds([*GOOD, *changes]) == {"early fire"}
    assert not judge([*GOOD, *changes], BOUNDS._replace(clock_ms=300))
