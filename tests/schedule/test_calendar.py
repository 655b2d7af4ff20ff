"""Recurrences: cron against brute force across changes of the clocks, bounds, jitter."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from waterclock.model.errors import BadInput
from waterclock.schedule.calendar import (
    CronRule,
    IntervalRule,
    RecurrenceRule,
    instant_of,
    zone_of,
)
from waterclock.schedule.cron import Cron

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def utc(*fields: int) -> int:
    return int(datetime(*fields, tzinfo=UTC).timestamp()) * 1_000  # type: ignore[misc, arg-type]


def every(text: str, zone: str = "UTC", **bounds: int) -> RecurrenceRule:
    return RecurrenceRule(rule=CronRule(Cron(text), zone_of(zone)), **bounds)


def times(recurrence: RecurrenceRule, start_ms: int, end_ms: int) -> list[int]:
    found: list[int] = []
    now = start_ms
    while (after := recurrence.next_after(now)) is not None and after < end_ms:
        assert after > now
        found.append(after)
        now = after
    return found


def brute_force(cron: Cron, zone_name: str, start_ms: int, end_ms: int) -> list[int]:
    """Look at the clock on the wall every minute, as Vixie's cron does."""
    zone = zone_of(zone_name)
    found = []
    for time_ms in range(-(-(start_ms + 1) // MINUTE) * MINUTE, end_ms, MINUTE):
        local = datetime.fromtimestamp(time_ms // 1_000, zone)
        shown = local.replace(tzinfo=None, fold=0)
        is_match = cron.matches(shown)
        if not cron.is_interval:
            # Minutes that were skipped since the last look are made up for; none counts twice.
            before = datetime.fromtimestamp((time_ms - MINUTE) // 1_000, zone)
            skipped = before.replace(tzinfo=None, fold=0) + timedelta(minutes=1)
            is_match = is_match and local.fold == 0
            while skipped < shown:
                is_match = is_match or cron.matches(skipped)
                skipped += timedelta(minutes=1)
        if is_match:
            found.append(time_ms)
    return found


CHANGES = [
    ("Europe/Berlin", utc(2026, 3, 29, 1)),
    ("Europe/Berlin", utc(2026, 10, 25, 1)),
    ("America/New_York", utc(2026, 3, 8, 7)),
    ("America/New_York", utc(2026, 11, 1, 6)),
    ("Australia/Lord_Howe", utc(2026, 4, 4, 15)),
    ("Australia/Lord_Howe", utc(2026, 10, 3, 15, 30)),
    ("America/Santiago", utc(2026, 4, 5, 3)),
    ("America/Santiago", utc(2026, 9, 6, 4)),
    ("Africa/Casablanca", utc(2026, 2, 15, 2)),
    ("Pacific/Apia", utc(2011, 12, 30, 10)),
    ("Asia/Kathmandu", utc(2026, 1, 1)),
    ("UTC", utc(2028, 2, 29)),
]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    step = st.integers(1, high)
    part = st.one_of(
        st.just("*"),
        step.map("*/{}".format),
        value.map(str),
        st.tuples(value, value).map(lambda pair: "{}-{}".format(*sorted(pair))),
        st.tuples(value, step).map(lambda pair: "{}/{}".format(*pair)),
    )
    return st.lists(part, min_size=1, max_size=3).map(",".join)


CRONS = st.tuples(
    field(0, 59), field(0, 23), st.one_of(st.just("*"), field(1, 28)), st.just("*"), field(0, 7)
).map(" ".join)


@settings(max_examples=examples(150))
@given(CRONS, st.sampled_from(CHANGES), st.integers(0, 30 * HOUR))
def test_cron_is_what_asking_every_minute_gives(text, change, before):
    zone, at = change
    start, end = at - before, at - before + 2 * DAY

    assert times(every(text, zone), start, end) == brute_force(Cron(text), zone, start, end)


@pytest.mark.parametrize(("zone", "at"), CHANGES)
@pytest.mark.parametrize("text", ["*/5 * * * *", "30 2 * * *", "30 1,2 * * *", "0 0 * * *"])
def test_cron_keeps_the_rule_at_every_change_of_clocks(text, zone, at):
    start, end = at - 2 * DAY, at + 2 * DAY

    assert times(every(text, zone), start, end) == brute_force(Cron(text), zone, start, end)


@pytest.mark.parametrize("text", ["30 2 * * *", "0,15,30 2 * * *", "0 2,3 * * *"])
def test_a_skipped_time_of_day_comes_at_once_when_clocks_were_put_forward(text):
    found = times(every(text, "Europe/Berlin"), utc(2026, 3, 29), utc(2026, 3, 29, 12))

    assert found == [utc(2026, 3, 29, 1)]  # 03:00 on the wall


def test_a_skipped_time_of_day_comes_also_to_who_asks_at_the_last_moment():
    half_past_two = CronRule(Cron("30 2 * * *"), zone_of("Europe/Berlin"))

    assert half_past_two.next_from(utc(2026, 3, 29, 1)) == utc(2026, 3, 29, 1)
    assert half_past_two.next_from(utc(2026, 3, 29, 1) + 1) == utc(2026, 3, 30, 0, 30)


@pytest.mark.parametrize("day", [utc(2026, 3, 29), utc(2026, 10, 25)])
@pytest.mark.parametrize(("text", "beat"), [("*/30 * * * *", 30 * MINUTE), ("5 * * * *", HOUR)])
def test_an_interval_keeps_its_beat_when_clocks_are_put_forward_and_back(day, text, beat):
    found = times(every(text, "Europe/Berlin"), day - 2 * HOUR, day + 6 * HOUR)

    assert {after - before for before, after in pairwise(found)} == {beat}


def test_seconds_are_made_up_for_once_and_come_in_both_repeated_hours():
    berlin = zone_of("Europe/Berlin")
    fixed, beat = (
        CronRule(Cron("*/20 30 2 * * *"), berlin),
        CronRule(Cron("*/20 30 * * * *"), berlin),
    )

    day = times(RecurrenceRule(rule=fixed), utc(2026, 3, 29), utc(2026, 3, 29, 12))
    both = times(RecurrenceRule(rule=beat), utc(2026, 10, 25), utc(2026, 10, 25, 2))

    assert day == [utc(2026, 3, 29, 1)]
    half_past = [utc(2026, 10, 25, hour, 30, second) for hour in (0, 1) for second in (0, 20, 40)]
    assert both == half_past


def test_a_repeated_local_time_fires_once_the_first_time():
    half_past_two = every("30 2 * * *", "Europe/Berlin")

    found = times(half_past_two, utc(2026, 10, 25), utc(2026, 10, 26))

    assert found == [utc(2026, 10, 25, 0, 30)]
    assert half_past_two.next_after(utc(2026, 10, 25, 1, 10)) == utc(2026, 10, 26, 1, 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 29 2 *", utc(2028, 2, 29)),
        ("0 0 L * *", utc(2026, 11, 30)),
        ("0 0 L 2 *", utc(2027, 2, 28)),
        ("0 0 13 * FRI", utc(2026, 11, 20)),
        ("15 10 * JAN-MAR mon-fri", utc(2027, 1, 1, 10, 15)),
        ("*/20 * * * * *", utc(2026, 11, 15, 10, 0, 20)),
        ("59 59 23 31 12 *", utc(2026, 12, 31, 23, 59, 59)),
        ("0 0 * * 7", utc(2026, 11, 22)),
        ("@hourly", utc(2026, 11, 15, 11)),
        ("@YEARLY", utc(2027, 1, 1)),
        ("@weekly", utc(2026, 11, 22)),
    ],
)
def test_the_next_of_an_expression(text, expected):
    assert every(text).next_after(utc(2026, 11, 15, 10)) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0 0 30 2 *", "day of month"),
        ("0 0 31 4,6,9,11 *", "day of month"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of week"),
        ("* * * FOO *", "month"),
        ("60 * * * * *", "second"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*-5 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("² * * * *", "minute"),
        ("L * * * *", "minute"),
        ("* * * *", "5 or 6 fields"),
        ("* * * * * * *", "5 or 6 fields"),
        ("@fortnightly", "5 or 6 fields"),
        ("1," * 300 + "1 * * * *", "256 characters"),
    ],
)
def test_a_wrong_expression_names_its_field(text, named):
    with pytest.raises(BadInput, match=named):
        Cron(text)


@given(st.one_of(st.text(max_size=40), st.text("0123456789*/-, LJANMON@", max_size=40)))
def test_no_text_makes_the_parser_fail_otherwise(text):
    try:
        cron = Cron(text)
    except BadInput:
        return
    found = cron.next_from(datetime(2026, 1, 1))
    assert found is None or cron.matches(found)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../../etc/passwd", "/etc", "America", "\0"])
def test_an_unknown_zone_is_refused(name):
    with pytest.raises(BadInput, match="zone"):
        zone_of(name)


def test_a_skipped_local_time_has_no_instant():
    berlin = zone_of("Europe/Berlin")

    assert instant_of(datetime(2026, 3, 29, 2, 30), berlin) is None
    assert instant_of(datetime(2026, 10, 25, 2, 30), berlin) == utc(2026, 10, 25, 0, 30)


def test_an_interval_is_counted_from_its_anchor():
    rule = IntervalRule(90_000, 1_000)
    recurrence = RecurrenceRule(rule=rule, start_ms=1_000)

    assert times(recurrence, 0, 300_000) == [91_000, 181_000, 271_000]
    assert recurrence.next_after(10**15) == 1_000 + -(-(10**15 + 1 - 1_000) // 90_000) * 90_000


def test_occurrences_lie_within_their_bounds():
    bounded = every("0 * * * *", start_ms=2 * HOUR, end_ms=5 * HOUR)

    assert times(bounded, 0, DAY) == [2 * HOUR, 3 * HOUR, 4 * HOUR]
    assert bounded.next_after(4 * HOUR) is None


def test_the_end_of_the_calendar_is_the_end():
    assert every("0 0 1 1 *").next_after(utc(9999, 6, 1)) is None
    assert every("0 0 29 2 *").next_after(utc(9997, 6, 1)) is None


@settings(max_examples=examples(30))
@given(
    st.integers(0, 1 << 64),
    st.integers(0, DAY),
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 */3 * * *", "@every"]),
    st.integers(0, HOUR),
)
def test_jitter_keeps_order_and_loses_nothing(seed, jitter_ms, text, start):
    base: CronRule | IntervalRule = IntervalRule(17_000, 3)
    if text != "@every":
        base = CronRule(Cron(text), zone_of("UTC"))
    plain = RecurrenceRule(rule=base)
    jittered = RecurrenceRule(rule=base, jitter_ms=jitter_ms, jitter_seed=seed)
    start += 2 * DAY
    occurrences = times(plain, start - 2 * DAY, start + 2 * HOUR)

    found = times(jittered, start, start + 2 * HOUR)

    later = [time for time in occurrences if time + jitter_ms > start]
    assert len(found) <= len(later)
    behind = [max(o for o in occurrences if o <= time) for time in found]
    assert behind == sorted(set(behind)), "one occurrence, one time"
    assert all(0 <= time - o <= jitter_ms for time, o in zip(found, behind, strict=True))
    assert {o for o in occurrences if start < o <= start + 2 * HOUR - jitter_ms} <= set(behind)
    for time in found[:3]:
        assert jittered.next_after(time - 1) == time


@pytest.mark.parametrize("wrong", [{"jitter_ms": -1}, {"jitter_ms": DAY + 1}, {"end_ms": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(BadInput):
        every("* * * * *", **wrong)


def test_the_whole_year_at_once():
    """A year of hours: as many as there are, one after the other."""
    hourly = times(
        every("0 * * * *", "Europe/Berlin"), utc(2025, 12, 31, 22, 59), utc(2026, 12, 31, 23)
    )
    gaps = {after - before for before, after in pairwise(hourly)}

    assert len(hourly) == 365 * 24
    assert gaps == {HOUR}
    assert timedelta(milliseconds=hourly[-1] - hourly[0]) == timedelta(days=365, hours=-1)
