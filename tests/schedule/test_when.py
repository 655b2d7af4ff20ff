"""When, as people write it, is read as meant or refused with a reason."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput
from waterclock.schedule.calendar import RecurrenceRule, local_of, repeat_of, zone_of
from waterclock.schedule.duration import parse_duration
from waterclock.schedule.when import (
    parse_moment,
    parse_past,
    parse_when,
    read_moment,
)

NOW = 1_790_000_000_000
TEN = int(datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()) * 1_000


WORDS = [
    "in",
    "at",
    "on",
    "next",
    "last",
    "every",
    "day",
    "weekday",
    "daily",
    "today",
    "tomorrow",
    "yesterday",
    "monday",
    "fri",
    "SAT",
    "noon",
    "now",
    "from",
    "ago",
    "1",
    "5",
    "24",
    "31",
    "2026",
    "2026-12-24",
    "2026-02-30",
    "9:00",
    "18:00",
    "25:00",
    "6pm",
    "13am",
    "18:00:59.9999",
    "T",
    "Z",
    "+01:00",
    "-0530",
    "+",
    "-",
    ",",
    "5m",
    "1.5h",
    "minutes",
    "hours",
    "and",
    "an",
    "months",
    "december",
    "feb",
    "UTC",
    "Europe/Berlin",
    "[CET]",
    "[x]",
    "@every",
    "@at",
    "@daily",
    "cron:",
    "*",
    "*/5",
    "0",
    "MON",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+5s", NOW + 5_000),
        ("+1h30m", NOW + 5_400_000),
        ("+250ms", NOW + 250),
        ("+1d1ms", NOW + 86_400_001),
        ("2026-11-15T10:00:00Z", TEN),
        ("2026-11-15t11:00:00+01:00", TEN),
        ("2026-11-15 10:00:00.25z", TEN + 250),
        ("@at 2026-11-15T10:00:00Z", TEN),
        ("2026-11-15T10:00:00.0000001Z", TEN + 1),
        ("2026-11-15T10:00:00.001000000Z", TEN + 1),
    ],
)
def test_a_time_is_read(text, expected):
    assert parse_when(text, NOW) == expected


def test_a_time_without_offset_is_local():
    assert parse_when("2026-11-15T11:00:00", NOW, "Europe/Berlin") == TEN
    assert parse_when("@at 2026-11-15T05:00:00", NOW, "America/New_York") == TEN


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("@every 90s", NOW + 90_000),
        ("@every 1h30m", NOW + 5_400_000),
        ("@daily", NOW // 86_400_000 * 86_400_000 + 86_400_000),
        ("*/15 * * * * *", NOW // 15_000 * 15_000 + 15_000),
    ],
)
def test_a_recurrence_is_read(text, after):
    recurrence = parse_when(text, NOW)

    assert isinstance(recurrence, RecurrenceRule)
    assert recurrence.next_after(NOW) == after


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "when"),
        ("soon", "when"),
        ("+", "duration"),
        ("+5", "duration"),
        ("+-5s", "duration"),
        ("+5s ", None),
        ("+99999999999999999d", "duration"),
        ("@at once", "when"),
        ("2026-02-30T10:00:00Z", "day is out of range"),
        ("2026-11-15T10:00:60Z", "second must be"),
        ("2026-11-15T10:00:00+25:00", "less than a day"),
        ("2026-11-15T10:00:00+01:99", "minutes of an offset"),
        ("0001-01-01T00:00:00+23:00", "when"),
        ("1969-12-31T23:59:59Z", "1970"),
        ("@every 10ms", "@every"),
        ("@every 99999d", "@every"),
        ("@every", "duration"),
        ("* * * * 9", "day of week"),
        ("x" * 257, "when"),
    ],
)
def test_what_is_wrong_is_named(text, named):
    if named is None:
        assert parse_when(text, NOW) == NOW + 5_000
        return
    with pytest.raises(BadInput, match=named):
        parse_when(text, NOW)


def test_a_local_time_that_clocks_skip_is_refused():
    with pytest.raises(BadInput, match="skip"):
        parse_when("2026-03-29T02:30:00", NOW, "Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "hours_later"),
    [
        ("2026-10-25 02:30", 1),
        ("2026-10-25 02:30 Europe/Berlin", 1),
        ("2026-10-25T02:30+02:00", None),
        ("2026-10-25 03:30", None),
        ("5m", None),
    ],
)
def test_a_time_that_clocks_show_twice_is_told_unless_it_says_which(text, hours_later):
    zone = "UTC" if text.endswith("Berlin") else "Europe/Berlin"
    found = read_moment(text, NOW, zone)

    assert found.time_ms == parse_moment(text, NOW, zone)
    again = None if hours_later is None else found.time_ms + hours_later * 3_600_000
    assert found.again_ms == again


@pytest.mark.parametrize("text", ["5m", "in 5 minutes", "now", "1h ago", "18:00", "2026-12-24"])
def test_what_counts_from_now_is_told_from_what_clocks_say(text):
    is_past = text.endswith("ago")
    found = read_moment(text, NOW, "Asia/Kolkata", is_past=is_past)

    assert found.is_relative is (text in ("5m", "in 5 minutes", "now", "1h ago"))
    if is_past:
        assert found.time_ms == NOW - 3_600_000


@given(
    st.integers(0, 4 * 10**12),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
def test_an_instant_that_repeats_is_the_repeat_of_its_own(time_ms, name):
    zone = zone_of(name)
    again = repeat_of(time_ms, zone)

    if again is not None:
        assert again != time_ms
        assert local_of(again, zone) == local_of(time_ms, zone)
        assert repeat_of(again, zone) == time_ms


@given(st.integers(0, 10**12))
def test_a_duration_adds_up(value):
    days, rest = divmod(value, 86_400_000)
    seconds, ms = divmod(rest, 1_000)

    assert parse_duration(f"{days}d{seconds}s{ms}ms") == value


@given(
    st.one_of(
        st.text(max_size=60),
        st.text("0123456789+-:.TZ @aevrytsmhd*/,L", max_size=60),
        st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join),
        st.lists(st.sampled_from(WORDS), max_size=7).map("".join),
    ),
    st.sampled_from(["UTC", "Asia/Tokyo", "nowhere"]),
)
def test_no_text_makes_the_parser_fail_otherwise(text, zone):
    for parse in (parse_moment, parse_past):
        with suppress(BadInput):
            assert parse(text, NOW, zone) >= 0
    try:
        found = parse_when(text, NOW, zone)
    except BadInput:
        return
    if isinstance(found, RecurrenceRule):
        after = found.next_after(NOW)
        assert after is None or after > NOW
    else:
        assert found >= 0
