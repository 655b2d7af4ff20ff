"""The audit's bounds: however much is noted, little is written, and what is left out is counted."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from waterclock.security.audit import (
    CALLS_MAX,
    DENIALS_MAX,
    KEPT_MAX,
    SOURCE_DENIALS_MAX,
    TEXT_CHARS_MAX,
    AuditBook,
    AuditEntry,
    printable,
)

errors = st.sampled_from(["NotAuthenticated", "Forbidden", "QuotaExceeded"])
denials = st.builds(
    AuditEntry,
    time_ms=st.just(1),
    outcome=st.just("denied"),
    principal=st.sampled_from(["", "ada", "bob"]),
    address=st.integers(0, 9).map("10.0.0.{}".format),
    topic=st.integers(0, 40).map("t{}".format),
    error=errors,
)


def call(principal: str, topic: str = "t") -> AuditEntry:
    return AuditEntry(time_ms=1, outcome="allowed", principal=principal, topic=topic)


def counts_of(entries: list[AuditEntry]) -> Counter[str]:
    """Return how many denials entries stand for, by error."""
    found: Counter[str] = Counter()
    for entry in entries:
        found.update(entry.left_out or {entry.error: entry.count})
    return found


@given(st.lists(st.lists(denials, max_size=300), min_size=1, max_size=4))
def test_a_tick_writes_a_bounded_number_of_entries_that_stand_for_all_denials(ticks):
    book = AuditBook()
    for noted in ticks:
        for entry in noted:
            book.note_denial(entry)
        written = book.tick(2)

        assert len(written) <= DENIALS_MAX + 1
        sources = Counter(entry.principal or entry.address for entry in written if entry.error)
        assert all(count <= SOURCE_DENIALS_MAX for count in sources.values())
        assert counts_of(written) == Counter(entry.error for entry in noted)
        assert sum(bool(entry.left_out) for entry in written) <= 1
    assert book.tick(3) == []


def test_denials_that_are_alike_are_one_entry_of_the_first_request():
    book = AuditBook()
    first = AuditEntry(time_ms=1, outcome="denied", address="a", error="Forbidden", request_id="r1")
    for number in range(5):
        book.note_denial(replace(first, time_ms=1 + number, request_id=f"r{1 + number}"))

    assert book.tick(9) == [replace(first, count=5)]


def test_one_source_of_many_denials_hides_none_of_another():
    book = AuditBook()
    flood = AuditEntry(time_ms=1, outcome="denied", address="evil", error="NotAuthenticated")
    for number in range(10_000):
        book.note_denial(replace(flood, operation=f"GET /{number}"))
    other = replace(flood, principal="ada", error="Forbidden")
    book.note_denial(other)

    *entries, summary = book.tick(2)
    assert other in entries
    assert len(entries) == SOURCE_DENIALS_MAX + 1
    assert summary.left_out == {"NotAuthenticated": 10_000 - SOURCE_DENIALS_MAX}


@given(st.lists(st.tuples(st.sampled_from(["ada", "bob", "admin"]), st.booleans()), max_size=200))
def test_calls_of_admins_are_all_written_and_others_counted_beyond_a_bound(noted):
    book = AuditBook()
    are_noted = [book.note_call(call(who), is_admin=is_admin) for who, is_admin in noted]
    written = book.take_calls()
    assert len(written) == sum(are_noted)
    assert sum(not is_admin for _, is_admin in noted) - are_noted.count(False) <= CALLS_MAX
    assert all(was for was, (_, is_admin) in zip(are_noted, noted, strict=True) if is_admin)

    book.tick(2)
    left_out = Counter[str]()
    for entry in book.take_calls():
        left_out.update(entry.left_out)
    expected = [who for (who, _), was in zip(noted, are_noted, strict=True) if not was]
    assert left_out == Counter(expected)


def test_what_cannot_be_written_waits_within_bounds_and_is_counted_beyond():
    book = AuditBook()
    entry = AuditEntry(time_ms=1, outcome="denied", error="Forbidden")
    kept = [replace(entry, topic=f"t{number}") for number in range(KEPT_MAX + 7)]
    book.keep_denials(kept)
    book.keep_calls([call("admin", f"t{number}") for number in range(KEPT_MAX + 3)])

    assert book.take_kept_denials() == kept[:KEPT_MAX]
    (summary,) = book.tick(2)
    assert summary.left_out == {"Forbidden": 7}
    *calls, rest = book.take_calls()
    assert (len(calls), rest.left_out) == (KEPT_MAX, {"admin": 3})
    book.keep_calls([rest])
    book.keep_denials([summary])
    assert book.tick(3) == [replace(summary, time_ms=3)]
    assert book.take_calls() == [replace(rest, time_ms=3)]


@given(st.text(st.characters(), max_size=2 * TEXT_CHARS_MAX))
def test_a_text_is_bounded_and_printable_and_an_entry_of_it_is_one_line_of_json(text):
    shown = printable(text)
    assert len(shown) <= TEXT_CHARS_MAX
    assert shown.isprintable()
    if text.isprintable() and len(text) <= TEXT_CHARS_MAX:
        assert shown == text

    encoded = AuditEntry(time_ms=1, outcome="denied", topic=shown).encode()
    assert len(encoded.splitlines()) == 1
    assert json.loads(encoded)["topic"] == shown
