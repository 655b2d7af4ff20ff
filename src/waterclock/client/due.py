"""`at=`: a time, a delay, or a rule, as people write it in a program.

    datetime(2026, 12, 24, 18, tzinfo=...)   aware; a naive one is refused, for it means two things
    timedelta(minutes=5)   "+5m"   "in 5 minutes"   from now, by the node's clock
    "2026-12-24T18:00Z"   "tomorrow 9:00"    see `schedule.when` for all the forms
    "18:00 Europe/Berlin"                    local to a zone; UTC if none is named
    Cron("0 9 * * *", zone="Europe/Berlin")  again and again; as text: "0 9 * * * Europe/Berlin"
    Every("90s")                             the same at a fixed interval; text: "every 90s"
    "every day at 9:00 Europe/Berlin"        a Cron, in words

A local time that clocks skip is refused, of one they repeat the first is meant, and nothing is ever
rounded to an earlier time.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis
from waterclock.schedule.calendar import (
    CronRule,
    IntervalRule,
    RecurrenceRule,
    zone_of,
)
from waterclock.schedule.cron import Cron as CronExpression
from waterclock.schedule.duration import parse_duration
from waterclock.schedule.when import RULES, parse_moment, parse_past, parse_when

When = datetime | timedelta | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


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


def due_of(
    at: When | Rule, now_ms: int, *, field: str = "at", zone: str = "UTC"
) -> Millis | Cron | Every:
    """Return the instant that `at` means, or the rule if it is one; raise BadInput for nonsense.

    A text that names no zone is read in `zone`.
    """
    match at:
        case datetime():
            return _instant(at)
        case timedelta():
            return _after(now_ms, at)
        case Cron() | Every():
            return at
        case str():
            return _of_text(at, now_ms, field, zone)
    raise BadInput(
        f"{field}: {at!r} is neither a datetime, a timedelta, a text, a Cron nor an Every"
    )


def rule_of(at: Rule | str, now_ms: int, *, field: str = "at", zone: str = "UTC") -> Rule:
    """Return the rule that `at` means; a single time is refused."""
    found = due_of(at, now_ms, field=field, zone=zone)
    if isinstance(found, int):
        raise BadInput(f"{field}: {at!r} is a single time; what repeats needs a rule: {RULES}")
    return found


def past_ms(when: When, now_ms: int, *, field: str) -> int:
    """Return a time of the past: a delay counts backwards from now, and `18:00` is the last one."""
    if isinstance(when, timedelta):
        return now_ms - span_ms(when)
    if isinstance(when, str):
        return parse_past(when, now_ms, field=field)
    return instant_ms(when, now_ms, field=field)


def instant_ms(at: When, now_ms: int, *, field: str = "at") -> Millis:
    """Return the instant that `at` means; a rule is refused."""
    if isinstance(at, str):
        return parse_moment(at, now_ms, field=field)
    found = due_of(at, now_ms, field=field)
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


def _of_text(text: str, now_ms: int, field: str, zone: str) -> Millis | Cron | Every:
    found = parse_when(text, now_ms, zone, field=field)
    if not isinstance(found, RecurrenceRule):
        return found
    match found.rule:
        case CronRule(cron, place):
            return Cron(cron.text, place.key)
        case IntervalRule(interval_ms):
            return Every(timedelta(milliseconds=interval_ms))
