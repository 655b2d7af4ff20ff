"""Times as people write them mean what people mean, or are refused with all that is read."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput
from waterclock.schedule.calendar import CronRule, IntervalRule, RecurrenceRule, zone_of
from waterclock.schedule.duration import UNITS, parse_duration
from waterclock.schedule.moment import WEEKDAYS
from waterclock.schedule.when import FORMS, parse_moment, parse_past, parse_when

NOW = 1_790_000_000_000
WEDNESDAY = datetime(2026, 11, 18, 12, tzinfo=UTC)
WEDNESDAY_MS = int(WEDNESDAY.timestamp()) * 1_000


def moment(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromtimestamp(parse_moment(text, WEDNESDAY_MS, zone) / 1_000, UTC)


def past(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromtimestamp(parse_past(text, WEDNESDAY_MS, zone) / 1_000, UTC)


@pytest.mark.parametrize(
    "text", ["+5m", "5m", "in 5 minutes", "5 min from now", "300s", "In 5 Min"]
)
def test_from_now_is_written_in_many_ways(text):
    assert moment(text) == WEDNESDAY + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00", datetime(2026, 11, 18, 18)),
        ("12:00", datetime(2026, 11, 19, 12)),
        ("9:00", datetime(2026, 11, 19, 9)),
        ("6pm", datetime(2026, 11, 18, 18)),
        ("12am", datetime(2026, 11, 19, 0)),
        ("12pm", datetime(2026, 11, 19, 12)),
        ("6:30 PM", datetime(2026, 11, 18, 18, 30)),
        ("noon tomorrow", datetime(2026, 11, 19, 12)),
        ("tomorrow", datetime(2026, 11, 19)),
        ("tomorrow at 9:00", datetime(2026, 11, 19, 9)),
        ("9am tomorrow", datetime(2026, 11, 19, 9)),
        ("today 13:00", datetime(2026, 11, 18, 13)),
        ("friday", datetime(2026, 11, 20)),
        ("next friday", datetime(2026, 11, 20)),
        ("Fri 18:00", datetime(2026, 11, 20, 18)),
        ("on friday at 18:00", datetime(2026, 11, 20, 18)),
        ("wednesday 13:00", datetime(2026, 11, 18, 13)),
        ("next wednesday 13:00", datetime(2026, 11, 25, 13)),
        ("wednesday", datetime(2026, 11, 25)),
        ("2026-12-24", datetime(2026, 12, 24)),
        ("2026-12-24 18:00", datetime(2026, 12, 24, 18)),
        ("2026-12-24 at 6pm", datetime(2026, 12, 24, 18)),
        ("2026-12-24T18:00+0100", datetime(2026, 12, 24, 17)),
        ("2026-12-24T18:00-05", datetime(2026, 12, 24, 23)),
        ("24 December 2026", datetime(2026, 12, 24)),
        ("Dec 24th, 2026 18:00", datetime(2026, 12, 24, 18)),
        ("2020-01-01", datetime(2020, 1, 1)),
        ("now", datetime(2026, 11, 18, 12)),
    ],
)
def test_a_time_in_words_is_what_people_mean(text, meant):
    assert moment(text) == meant.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00 Europe/Berlin", datetime(2026, 11, 18, 17)),
        ("18:00 [CET]", datetime(2026, 11, 18, 17)),
        ("2026-12-24T18:00[America/New_York]", datetime(2026, 12, 24, 23)),
        ("2026-12-24T18:00Z Europe/Berlin", datetime(2026, 12, 24, 18)),
        ("tomorrow Pacific/Auckland", datetime(2026, 11, 19, 11)),
        ("18:00 utc", datetime(2026, 11, 18, 18)),
    ],
)
def test_a_zone_behind_it_is_the_one_that_counts(text, meant):
    assert moment(text, "Asia/Tokyo") == meant.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1h", datetime(2026, 11, 18, 11)),
        ("-1h", datetime(2026, 11, 18, 11)),
        ("1 hour ago", datetime(2026, 11, 18, 11)),
        ("+1h", datetime(2026, 11, 18, 13)),
        ("18:00", datetime(2026, 11, 17, 18)),
        ("12:00", datetime(2026, 11, 18, 12)),
        ("yesterday 9:00", datetime(2026, 11, 17, 9)),
        ("today", datetime(2026, 11, 18)),
        ("friday", datetime(2026, 11, 13)),
        ("last wednesday", datetime(2026, 11, 11)),
        ("wednesday", datetime(2026, 11, 18)),
        ("2026-11-01", datetime(2026, 11, 1)),
    ],
)
def test_since_and_until_mean_the_past(text, meant):
    assert past(text) == meant.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "cron"),
    [
        ("every day at 9:00", "0 9 * * *"),
        ("daily at 6:30pm", "30 18 * * *"),
        ("Every Monday 9am", "0 9 * * MON"),
        ("every weekday at 9:00:30", "30 0 9 * * MON-FRI"),
        ("cron: 0 9 * * *", "0 9 * * *"),
    ],
)
def test_a_rule_in_words_is_cron(text, cron):
    found = parse_when(f"{text} Europe/Berlin", NOW)

    assert isinstance(found, RecurrenceRule)
    assert isinstance(found.rule, CronRule)
    assert (found.rule.cron.text, found.rule.zone.key) == (cron, "Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "interval_ms"), [("every hour", 3_600_000), ("every 5 minutes", 300_000)]
)
def test_a_rule_in_words_is_an_interval(text, interval_ms):
    found = parse_when(text, NOW)

    assert isinstance(found, RecurrenceRule)
    assert found.rule == IntervalRule(interval_ms, NOW)


@pytest.mark.parametrize(
    "text",
    ["soon", "midnight", "this friday", "1234567890", "1790000000000", "12/11/2026", "12.11.26",
     "5M", "in a while", "9", "friday friday", "18:00 EST", "every", "in 5 minutes or so"],
)  # fmt: skip
def test_what_means_two_things_or_none_is_refused_and_never_called_cron(text):
    with pytest.raises(BadInput, match="when") as refused:
        parse_when(text, NOW)

    assert "fields" not in str(refused.value)


def test_who_writes_what_is_not_read_is_told_all_that_is():
    with pytest.raises(BadInput, match="at: 'soon'") as refused:
        parse_moment("soon", NOW, field="at")

    assert FORMS in str(refused.value)
    examples = re.findall(r"'([^']+)'|(?<![\w'])([+0-9][^\s;,']*)", FORMS)
    assert len(examples) > 10
    for quoted, bare in examples:
        assert parse_moment(quoted or bare, NOW) > 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("today 9:00", "has passed in UTC"),
        ("yesterday", "has passed"),
        ("5m ago", "in the past"),
        ("-5m", "in the past"),
        ("13pm", "from 1 to 12"),
        ("tomorrow 24:00", "hour must be"),
        ("31 feb 2026", "out of range"),
        ("in 2 months", "no fixed length"),
        ("every day", "at what time"),
        ("every blue moon", "every day at 9:00"),
        ("@fortnightly", "@daily"),
        ("cron: tomorrow", "every day at 9:00"),
        ("18:00 Europe/Nowhere", "not a known IANA"),
    ],
)
def test_what_cannot_be_is_told_why(text, why):
    with pytest.raises(BadInput, match=why):
        parse_when(text, WEDNESDAY_MS)


@pytest.mark.parametrize("text", ["5M", "12 M", "-5M", "5M ago", "2 months ago"])
def test_a_month_has_no_length_in_the_past_either(text):
    with pytest.raises(BadInput, match="since"):
        parse_past(text, WEDNESDAY_MS)


@pytest.mark.parametrize(
    ("text", "zone"),
    [("0 9 * * MON/2", "UTC"), ("0 9 * * mon/2 Europe/Berlin", "Europe/Berlin"),
     ("0 9 * JAN/3 MON/2 Etc/GMT+5", "Etc/GMT+5"), ("0 0 9 * * MON/2 [CET]", "CET")],
)  # fmt: skip
def test_a_step_of_cron_is_no_time_zone(text, zone):
    found = parse_when(text, NOW)

    assert isinstance(found, RecurrenceRule)
    assert isinstance(found.rule, CronRule)
    assert found.rule.zone.key == zone
    assert found.rule.cron.text.upper().endswith("MON/2")


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"]),
    st.times(),
    st.sampled_from(["", *WEEKDAYS]),
)
def test_the_next_one_is_after_now_and_the_last_one_is_not_and_both_show_that_time(
    now, zone_name, clock, day
):
    now_ms = int(now.replace(tzinfo=UTC).timestamp()) * 1_000
    clock = clock.replace(microsecond=0)
    text = f"{day} {clock}"
    step = 7 if day else 1
    for parse, is_after in ((parse_moment, True), (parse_past, False)):
        try:
            found = parse(text, now_ms, zone_name)
        except BadInput:  # clocks skip it
            continue
        shown = datetime.fromtimestamp(found / 1_000, zone_of(zone_name))
        assert shown.time().replace(tzinfo=None) == clock
        assert not day or WEEKDAYS[shown.weekday()] == day
        assert (found > now_ms) is is_after
        # Not the one after the next: clocks move by an hour at most in these zones.
        assert abs(found - now_ms) <= step * 86_400_000 + 3_600_000


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_every_unit_is_read_with_and_without_a_space(number, unit, space):
    assert parse_duration(f"{number}{space}{unit}") == number * UNITS[unit]


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1.5h", 5_400_000), ("an hour and 20 min", 4_800_000), ("1 hour, 30 minutes", 5_400_000),
     ("0.0001ms", 1), ("2w", 14 * 86_400_000), ("5MS", 5)],
)  # fmt: skip
def test_a_length_of_time_in_words(text, ms):
    assert parse_duration(text) == ms
