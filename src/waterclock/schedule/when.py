"""When, as people write it.

    +5m   5m   in 5 minutes   1h30m from now    from now (see `duration`)
    18:00   tomorrow 9:00   2026-12-24 18:00Z   a single time (see `moment`), @at before it or not
    18:00 Europe/Berlin   18:00 [CET]           in a zone; without one, in the zone of the caller
    every 90s   @every 1h30m                    again and again, counted from now on
    every day at 9:00   every monday 9am        again and again, by the clock
    0 9 * * MON   @daily   cron: 0 9 * * MON    cron (see `cron`)

The grammar is small, strict and our own. The libraries for this guess: on one day, for dateparser
"5m" is five minutes ago and "friday 18:00" the last one, for parsedatetime "next friday" is the one
after next, for dateutil "5m" is five past midnight, and all take 12/11/2026 for December. Importing
them takes 130 to 350 ms on a machine where this adds 30, and a command line is started for each
message. A text that is not read here is answered with the forms that are.
"""

import re
from typing import NamedTuple

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.schedule.calendar import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    CronRule,
    IntervalRule,
    RecurrenceRule,
    repeat_of,
    zone_of,
)
from waterclock.schedule.cron import MACROS, TEXT_CHARS_MAX, Cron
from waterclock.schedule.duration import UNITS, is_duration, parse_duration
from waterclock.schedule.moment import CLOCK, WEEKDAY, Clock, Here, has_offset

FORMS = (
    "+5m, 5m or 'in 5 minutes'; 18:00 or 6pm, the next one; 'tomorrow 9:00', 'friday 18:00' or "
    "'next friday'; 2026-12-24, '2026-12-24 18:00' or '24 December 2026'; 2026-12-24T18:00:00Z or "
    "2026-12-24T18:00+01:00; and a zone behind it, as in '18:00 Europe/Berlin'"
)
"""The forms of a single time, with an example each."""
RULES = "'every 90s', 'every day at 9:00', 'every monday 9:00', @daily or cron, as in '0 9 * * MON'"
PAST_FORMS = (
    "-1h, 1h or '1h ago'; 18:00, the last one; 'yesterday 9:00' or 'last friday'; 2026-12-24, "
    "'2026-12-24 18:00' or 2026-12-24T18:00:00Z; and a zone behind it, as in '18:00 Europe/Berlin'"
)

_ZONED = re.compile(
    r"(.*[^ ]) ?(?:\[([A-Za-z0-9_+/-]+)\]"
    r"| ((?i:utc)|[A-Za-z]{2,}/(?![0-9]+\Z)[A-Za-z0-9_+/-]+))",  # MON/2 is of cron
    re.ASCII,
)
_RELATIVE = re.compile(r"(?:\+ ?|in )(.*)|(.*) from now", re.ASCII | re.IGNORECASE)
_BEHIND = re.compile(r"- ?(.*)|(.*) ago", re.ASCII | re.IGNORECASE)
_EVERY_DAY = re.compile(
    rf"(?:every (day|weekday|{WEEKDAY})|(daily))(?: (?:at )?({CLOCK}))?", re.ASCII
)
_CRON_LIKE = re.compile(r"[0-9*,/-]+ [0-9*,/-]+( [A-Za-z0-9*,/?#-]+){3,4}", re.ASCII)
_TWO_DATES = re.compile(r"[0-9]{1,2}([./-])[0-9]{1,2}\1[0-9]{2,4}\b.*", re.ASCII)


def parse_when(
    text: str, now_ms: int, zone: str = "UTC", *, field: str = "when"
) -> Millis | RecurrenceRule:
    """Return the time or the recurrence that `text` means, or raise BadInput."""
    plain, zone = _split(text, zone, field)
    if _is_rule(plain):
        return RecurrenceRule(rule=_rule(plain, now_ms, zone, field), start_ms=now_ms)
    plain = _without_at(plain)
    found = _moment(plain.lower(), plain, Here(now_ms, zone), field)
    if found is None:
        raise _unread(field, plain, f"{FORMS}; or, again and again, {RULES}")
    return found


def parse_moment(text: str, now_ms: int, zone: str = "UTC", *, field: str = "when") -> Millis:
    """Return the single time that `text` means, or raise BadInput."""
    plain, zone = _split(text, zone, field)
    if _is_rule(plain):
        raise BadInput(f"{field}: {plain[:80]!r} is a rule; a single time is needed: {FORMS}")
    plain = _without_at(plain)
    found = _moment(plain.lower(), plain, Here(now_ms, zone), field)
    if found is None:
        raise _unread(field, plain, FORMS)
    return found


def parse_past(text: str, now_ms: int, zone: str = "UTC", *, field: str = "since") -> Millis:
    """Return the time that `text` means of since and until: of two, the one that has been."""
    plain, zone = _split(text, zone, field)
    lower = plain.lower()
    # As it was typed: 5M is not 5m.
    span = plain if _BEHIND.fullmatch(plain) is None else _within(_BEHIND, plain)
    if is_duration(span):
        return Millis(max(0, now_ms - parse_duration(span)))
    found = _moment(lower, plain, Here(now_ms, zone, is_past=True), field)
    if found is None:
        raise _unread(field, plain, PAST_FORMS)
    return found


class ReadMoment(NamedTuple):
    """A time that somebody wrote, and what more there is to tell them of it."""

    time_ms: Millis
    again_ms: Millis | None
    """When clocks show the same once more; None: they do not, or it was not named by the clock."""
    is_relative: bool
    """It counts from now: read later, it is later."""


def read_moment(
    text: str, now_ms: int, zone: str, *, is_past: bool = False, field: str = "when"
) -> ReadMoment:
    """Return the time that `text` means, as `parse_moment` and `parse_past` do, and whether it
    could be another; or raise BadInput."""
    parse = parse_past if is_past else parse_moment
    time_ms = parse(text, now_ms, zone, field=field)
    plain, zone = _split(text, zone, field)
    if needs_zone(plain):
        return ReadMoment(time_ms, repeat_of(time_ms, zone_of(zone)), is_relative=False)
    return ReadMoment(time_ms, None, is_relative=not has_offset(_without_at(plain.lower())))


def needs_zone(text: str) -> bool:
    """Tell whether a text means another time in another zone: it has a clock, and names none."""
    plain = " ".join(text.split())
    lower = _without_at(plain.lower())
    if _ZONED.fullmatch(plain) or lower == "now" or is_duration(lower) or has_offset(lower):
        return False
    if lower.startswith(("every ", "@every ")):
        return _EVERY_DAY.fullmatch(lower) is not None
    return _RELATIVE.fullmatch(lower) is None and _BEHIND.fullmatch(lower) is None


def _split(text: str, zone: str, field: str) -> tuple[str, str]:
    """Return a text, with single spaces, and the zone behind it or the one that is given."""
    if len(text) > TEXT_CHARS_MAX:
        raise LimitExceeded(field, TEXT_CHARS_MAX, got=len(text))
    plain = " ".join(text.split())
    zoned = _ZONED.fullmatch(plain)
    if zoned is None:
        return plain, zone
    name = zoned[2] or zoned[3]
    return zoned[1], "UTC" if name.upper() == "UTC" else name


def _is_rule(plain: str) -> bool:
    """Tell whether a text is meant as something that repeats."""
    lower = plain.lower()
    if lower.startswith("@at "):
        return False
    starts = ("cron:", "@", "every ", "daily")
    return lower.startswith(starts) or _CRON_LIKE.fullmatch(plain) is not None


def _without_at(plain: str) -> str:
    return plain[4:] if plain.lower().startswith("@at ") else plain


def _moment(lower: str, plain: str, here: Here, field: str) -> Millis | None:
    """Return the instant of a single time; None if it is none."""
    if lower == "now":
        return Millis(here.now_ms)
    ahead = _RELATIVE.fullmatch(lower)
    if ahead is not None or is_duration(plain):
        # As it was typed: 5M is not 5m.
        span = plain if ahead is None else _within(_RELATIVE, plain)
        try:
            return Millis(here.now_ms + parse_duration(span))
        except LimitExceeded:
            raise
        except BadInput as error:
            raise BadInput(f"{field}: {error}") from error
    try:
        found = here.read(lower)
    except BadInput as error:
        raise BadInput(f"{field}: {error}") from error
    is_behind = found is None and _BEHIND.fullmatch(lower) is not None
    if is_behind and is_duration(_within(_BEHIND, plain)):
        raise BadInput(f"{field}: {plain!r} is in the past")
    return found


def _within(pattern: re.Pattern[str], plain: str) -> str:
    """Return what a pattern finds in a text, as it was typed."""
    match = pattern.fullmatch(plain)
    assert match is not None
    return match[1] or match[2] or ""


def _rule(plain: str, now_ms: int, zone: str, field: str) -> CronRule | IntervalRule:
    lower = plain.lower()
    if (match := _EVERY_DAY.fullmatch(lower)) is not None:
        return CronRule(Cron(_by_clock(match, plain, field)), zone_of(zone))
    word, _, rest = lower.removeprefix("@").partition(" ")
    if word == "every":
        try:
            return _interval(plain[len(plain) - len(rest) :], now_ms)
        except LimitExceeded:
            raise
        except BadInput as error:
            raise BadInput(f"{field}: {plain!r}: {error}. Write {RULES}") from error
    text = plain[5:].strip() if lower.startswith("cron:") else plain
    if text.startswith("@") and text.lower() not in MACROS:
        raise BadInput(f"{field}: {text[:80]!r} is none of @every, {', '.join(MACROS)}")
    if not text.startswith("@") and len(text.split()) not in (5, 6):
        raise _unread(field, plain, RULES)
    return CronRule(Cron(text), zone_of(zone))


def _by_clock(match: re.Match[str], plain: str, field: str) -> str:
    """Return the cron expression of a time of day, on all days or some."""
    day, _, clock = match.groups()
    if clock is None:
        raise BadInput(f"{field}: {plain!r}: at what time? Write '{plain} at 9:00', or 'every 24h'")
    try:
        at = Clock.parse(clock)
    except ValueError as error:
        raise BadInput(f"{field}: {plain!r}: {error}") from error
    if at.nanos:
        raise BadInput(f"{field}: {plain!r}: what repeats comes at whole seconds")
    days = {None: "*", "day": "*", "weekday": "MON-FRI"}.get(day, (day or "")[:3].upper())
    seconds = f"{at.time.second} " if at.time.second else ""
    return f"{seconds}{at.time.minute} {at.time.hour} * * {days}"


def _interval(text: str, now_ms: int) -> IntervalRule:
    # "every hour" is "every 1 hour".
    interval = parse_duration(f"1 {text}" if text.lower() in UNITS else text)
    if interval < INTERVAL_MS_MIN:
        raise BadInput(f"@every: at least {INTERVAL_MS_MIN} ms (got {interval})")
    if interval > INTERVAL_MS_MAX:
        raise LimitExceeded("@every", INTERVAL_MS_MAX, got=interval)
    return IntervalRule(interval, now_ms)


def _unread(field: str, text: str, forms: str) -> BadInput:
    """Return the error for a text that is of no form, with those that are."""
    why = "is not a time that is read here"
    if text.isdecimal():
        why = "could be seconds, milliseconds or a year"
    elif _TWO_DATES.fullmatch(text):
        why = "could be two dates"
    return BadInput(f"{field}: {text[:80]!r} {why}. Write {forms}")
