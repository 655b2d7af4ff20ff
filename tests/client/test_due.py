"""`at=` in all its forms means what a person would think, and never an earlier time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.client.due import Cron, Every, due_of, instant_ms, span_ms
from waterclock.model.errors import BadInput

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)  # a Wednesday
NOW_MS = int(NOW.timestamp() * 1_000)


def at(text: object) -> datetime:
    ms = due_of(text, NOW_MS)  # type: ignore[arg-type]
    assert isinstance(ms, int)
    return datetime.fromtimestamp(ms / 1_000, UTC)


@pytest.mark.parametrize(
    ("given_as", "meant"),
    [
        (timedelta(seconds=5), NOW + timedelta(seconds=5)),
        ("+5s", NOW + timedelta(seconds=5)),
        (" +1h30m ", NOW + timedelta(hours=1, minutes=30)),
        (datetime(2026, 12, 24, 18, tzinfo=UTC), datetime(2026, 12, 24, 18, tzinfo=UTC)),
        (
            datetime(2026, 12, 24, 18, tzinfo=timezone(timedelta(hours=1))),
            datetime(2026, 12, 24, 17, tzinfo=UTC),
        ),
        ("2026-12-24T18:00Z", datetime(2026, 12, 24, 18, tzinfo=UTC)),
        ("2026-12-24T18:00:30Z", datetime(2026, 12, 24, 18, 0, 30, tzinfo=UTC)),
        ("2026-12-24T18:00+01:00", datetime(2026, 12, 24, 17, tzinfo=UTC)),
        ("2026-12-24 9:05", datetime(2026, 12, 24, 9, 5, tzinfo=UTC)),
        ("2026-12-24 18:00 Europe/Berlin", datetime(2026, 12, 24, 17, tzinfo=UTC)),
        ("today 13:00", datetime(2026, 11, 18, 13, tzinfo=UTC)),
        ("tomorrow 9:00 Europe/Berlin", datetime(2026, 11, 19, 8, tzinfo=UTC)),
        ("Friday 17:30:15", datetime(2026, 11, 20, 17, 30, 15, tzinfo=UTC)),
        ("wednesday 12:30", datetime(2026, 11, 18, 12, 30, tzinfo=UTC)),
        ("wednesday 12:00", datetime(2026, 11, 25, 12, 0, tzinfo=UTC)),
        ("monday 9:00 America/New_York", datetime(2026, 11, 23, 14, tzinfo=UTC)),
    ],
)
def test_a_time_means_one_moment(given_as, meant):
    assert at(given_as) == meant


@pytest.mark.parametrize(
    ("given_as", "rule"),
    [
        (Cron("0 9 * * *", "Europe/Berlin"), Cron("0 9 * * *", "Europe/Berlin")),
        ("cron: 0 9 * * *", Cron("0 9 * * *")),
        ("cron: */5 9-17 * * MON-FRI Europe/Berlin", Cron("*/5 9-17 * * MON-FRI", "Europe/Berlin")),
        ("0 9 * * *", Cron("0 9 * * *")),
        ("0 9 * * * America/New_York", Cron("0 9 * * *", "America/New_York")),
        ("@daily", Cron("@daily")),
        ("@every 90s", Every(timedelta(seconds=90))),
        (Every("90s"), Every("90s")),
    ],
)
def test_a_rule_stays_a_rule(given_as, rule):
    assert due_of(given_as, NOW_MS) == rule


@pytest.mark.parametrize(
    ("given_as", "why"),
    [
        (datetime(2026, 12, 24, 18), "no time zone"),
        (timedelta(seconds=-1), "in the past"),
        (datetime(1969, 1, 1, tzinfo=UTC), "before 1970"),
        ("today 9:00", "has passed"),
        ("tomorrow 25:00", "hour must be"),
        ("tomorrow 9:00 Europe/Nowhere", "not a known IANA"),
        ("soon", "at: 'soon' is not a time that is read here. Write"),
        ("", "Write"),
        ("cron: 61 * * * *", "61"),
        ("2026-03-29 2:30 Europe/Berlin", "skip"),
        (17, "neither a datetime"),
        (None, "neither a datetime"),
    ],
)
def test_nonsense_is_refused_with_a_reason(given_as, why):
    with pytest.raises(BadInput, match=why):
        due_of(given_as, NOW_MS)


def test_an_hour_that_clocks_skip_is_refused_tomorrow_too():
    saturday = datetime(2027, 3, 27, 12, tzinfo=UTC)

    with pytest.raises(BadInput, match="skip"):
        due_of("tomorrow 2:30 Europe/Berlin", int(saturday.timestamp() * 1_000))


def test_a_rule_is_no_single_time():
    with pytest.raises(BadInput, match="end: '@daily' is a rule"):
        instant_ms("@daily", NOW_MS, field="end")


def test_who_needs_a_single_time_is_offered_no_rules():
    with pytest.raises(BadInput, match="end: 'banana' is not a time") as refused:
        instant_ms("banana", NOW_MS, field="end")
    assert "every" not in str(refused.value)

    with pytest.raises(BadInput, match=r"at: 'banana' is not a time .* 'every 90s'"):
        due_of("banana", NOW_MS)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_parts_of_a_millisecond_are_never_cut_off(moment):
    ms = due_of(moment, NOW_MS)

    assert isinstance(ms, int)
    late = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) - moment
    assert timedelta(0) <= late < timedelta(milliseconds=1)


def test_lengths_of_time_are_rounded_up():
    assert span_ms(timedelta(microseconds=1)) == 1
    assert span_ms("1m30s") == span_ms("+1m30s") == 90_000


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(BadInput, match="longer than nothing"):
        Every(timedelta(0))
