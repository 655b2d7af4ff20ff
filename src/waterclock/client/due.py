"""`at=`: a time, a delay, or a rule, as people write it in a program.

    datetime(2026, 12, 24, 18, tzinfo=...)   aware; a naive one is refused, for it means two things
    timedelta(minutes=5)   "+5m"             from now, by the node's clock
    "2026-12-24T18:00Z"                      RFC 3339, the seconds may be left out
    "2026-12-24 18:00 Europe/Berlin"         local to a zone; UTC if none is named
    "tomorrow 9:00 Europe/Berlin"            today, tomorrow, or the next monday ... sunday
    Cron("0 9 * * *", zone="Europe/Berlin")  again and again; also as text: "cron: 0 9 * * *"
    Every("90s")                             the same at a fixed interval; text: "@every 90s"

A local time that clocks skip is refused, of one they repeat the first is meant, and nothing is ever
rounded to an earlier time.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis
from waterclock.schedule.calendar import (
    CronRule,
    IntervalRule,
    Recurrence,
    instant_of,
    local_of,
    zone_of,
)
from waterclock.schedule.cron import Cron as CronExpression
from waterclock.schedule.when import parse_duration, parse_when

When = datetime | timedelta | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_ZONED = re.compile(r"(.*\S)\s+(UTC|[A-Za-z]{2,}/[A-Za-z0-9_+/-]+)", re.ASCII)
_DAY_TIME = re.compile(
    rf"(today|tomorrow|{'|'.join(_DAYS)})\s+([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}}))?",
    re.ASCII | re.IGNORECASE,
)
_NO_SECONDS = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{1,2}:[0-9]{2})([Zz]|[+-][0-9]{2}:[0-9]{2})?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Cron:
    """Times that match a cron expression, in a time zone: five fields, or six with seconds."""

    text: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        CronExpression(self.text)
        zone_of(self.zone)


@dataclass(frozen=True, slots=True)
class Every:
    """Times at a fixed distance, the first one so long from now."""

    interval: timedelta | str

    def __post_init__(self) -> None:
        if self.interval_ms <= 0:
            raise BadInput(f"Every: {self.interval} is not longer than nothing")

    @property
    def interval_ms(self) -> int:
        """The distance in milliseconds."""
        return span_ms(self.interval)


Rule = Cron | Every


def due_of(at: When | Rule, now_ms: int) -> Millis | Cron | Every:
    """Return the instant that `at` means, or the rule if it is one; raise BadInput for nonsense."""
    match at:
        case datetime():
            return _instant(at)
        case timedelta():
            return _after(now_ms, at)
        case Cron() | Every():
            return at
        case str():
            return _of_text(at.strip(), now_ms)
    raise BadInput(f"at: {at!r} is neither a datetime, a timedelta, a text, a Cron nor an Every")


def instant_ms(at: When, now_ms: int, *, field: str = "at") -> Millis:
    """Return the instant that `at` means; a rule is refused."""
    found = due_of(at, now_ms)
    if isinstance(found, Cron | Every):
        raise BadInput(f"{field}: {at!r} is a rule; a single time is needed")
    return found


def span_ms(span: timedelta | str) -> int:
    """Return a length of time in milliseconds, rounded up; text may begin with a plus."""
    if isinstance(span, timedelta):
        return -(-span // _MS)
    return parse_duration(span.strip().removeprefix("+"))


def _instant(at: datetime) -> Millis:
    if at.tzinfo is None:
        raise BadInput(
            f"at: {at} has no time zone, so it means another moment on another computer; "
            "use datetime(..., tzinfo=UTC) or .astimezone()"
        )
    since = -(-(at - _EPOCH) // _MS)
    if since < 0:
        raise BadInput(f"at: {at} is before 1970")
    return Millis(since)


def _after(now_ms: int, delay: timedelta) -> Millis:
    if delay < timedelta(0):
        raise BadInput(f"at: {delay} is in the past")
    return Millis(now_ms + -(-delay // _MS))


def _of_text(text: str, now_ms: int) -> Millis | Cron | Every:
    if text[:5].lower() == "cron:":
        rest, zone = _split_zone(text[5:].strip())
        return Cron(rest, zone)
    text, zone = _split_zone(text)
    if (day := _DAY_TIME.fullmatch(text)) is not None:
        return _on_day(text, day, now_ms, zone)
    if (short := _NO_SECONDS.fullmatch(text)) is not None:
        date, clock, offset = short.groups()
        text = f"{date}T{clock.zfill(5)}:00{offset or ''}"
    found = parse_when(text, now_ms, zone)
    if not isinstance(found, Recurrence):
        return found
    match found.rule:
        case CronRule(cron):
            return Cron(cron.text, zone)
        case IntervalRule(interval_ms):
            return Every(timedelta(milliseconds=interval_ms))


def _split_zone(text: str) -> tuple[str, str]:
    zoned = _ZONED.fullmatch(text)
    return (zoned[1], zoned[2]) if zoned else (text, "UTC")


def _on_day(text: str, match: re.Match[str], now_ms: int, zone: str) -> Millis:
    word, hour, minute, second = match.groups()
    today = local_of(now_ms, zone_of(zone))
    try:
        local = today.replace(
            hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=0
        )
    except ValueError as error:
        raise BadInput(f"at: {text!r}: {error}") from error
    word = word.lower()
    if word in _DAYS:
        local += timedelta(days=(_DAYS.index(word) - local.weekday()) % 7)
        local += timedelta(days=7 if local <= today else 0)
    elif word == "tomorrow":
        local += timedelta(days=1)
    elif local < today:
        raise BadInput(f"at: {text!r} has passed in {zone}")
    instant = instant_of(local, zone_of(zone))
    if instant is None:
        raise BadInput(f"at: clocks in {zone} skip {text!r}")
    return instant
