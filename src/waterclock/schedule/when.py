"""When, as people write it.

    +5s   +1h30m                      from now
    2026-11-15T10:00:00Z              RFC 3339; without an offset, in the zone given
    @at 2026-11-15T10:00:00+01:00     the same
    @every 90s                        again and again, from now on
    0 9 * * MON   @daily              cron (see `cron`), in the zone given

A time is never moved to fit: one that clocks skip is refused, of one that they repeat the first is
meant, and parts of a millisecond are rounded up, for nothing may be early.
"""

import re
from datetime import UTC, datetime, timedelta

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.units import DURATION
from waterclock.schedule.calendar import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    CronRule,
    IntervalRule,
    Recurrence,
    instant_of,
    zone_of,
)
from waterclock.schedule.cron import TEXT_CHARS_MAX, Cron

_PARTS = re.compile(r"(?:[0-9]{1,18}(?:ms|[smhd]))+", re.ASCII)
_PART = re.compile(r"([0-9]+)(ms|[smhd])", re.ASCII)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DURATION_MS_MAX = 1 << 53
"""Whatever is longer is a mistake; the due-time horizon of a topic is far below."""


def parse_when(text: str, now_ms: int, zone: str = "UTC") -> Millis | Recurrence:
    """Return the time or the recurrence that `text` means, or raise BadInput."""
    if len(text) > TEXT_CHARS_MAX:
        raise LimitExceeded("when", TEXT_CHARS_MAX, got=len(text))
    text = text.strip()
    word, _, rest = text.partition(" ")
    if text.startswith("+"):
        return Millis(now_ms + parse_duration(text[1:]))
    if word.lower() == "@at":
        return parse_time(rest.strip(), zone)
    if word.lower() == "@every":
        return Recurrence(rule=_interval(rest.strip(), now_ms), start_ms=now_ms)
    if _TIME.fullmatch(text):
        return parse_time(text, zone)
    if text.startswith("@") or " " in text:
        return Recurrence(rule=CronRule(Cron(text), zone_of(zone)), start_ms=now_ms)
    raise BadInput(f"when: {text!r} is neither +5s, a time, @at, @every nor cron")


def parse_duration(text: str) -> Millis:
    """Return a length of time such as `90s` or `1h30m`."""
    if _PARTS.fullmatch(text) is None:
        raise BadInput(f"duration: {text!r} is not a time such as 90s or 1h30m")
    total = sum(int(n) * DURATION.factors[unit] for n, unit in _PART.findall(text))
    if total > DURATION_MS_MAX:
        raise LimitExceeded("duration", DURATION_MS_MAX, got=total)
    return Millis(total)


def parse_time(text: str, zone: str = "UTC") -> Millis:
    """Return the instant of an RFC 3339 time; without an offset it is local to `zone`."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise BadInput(f"time: {text!r} is not of the form 2026-11-15T10:00:00Z")
    day, clock, fraction, offset = match.groups()
    try:
        local = datetime.fromisoformat(f"{day}T{clock}")
        nanos = int((fraction or "0").ljust(9, "0"))
        if offset is None:
            instant = instant_of(local, zone_of(zone))
        else:
            aware = datetime.fromisoformat(f"{day}T{clock}{offset.upper().replace('Z', '+00:00')}")
            instant = Millis((aware - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError) as error:
        raise BadInput(f"time: {text!r}: {error}") from error
    if instant is None:
        raise BadInput(f"time: clocks in {zone} skip {text!r}")
    if instant < 0:
        raise BadInput(f"time: {text!r} is before 1970")
    return Millis(instant - -nanos // 1_000_000)


def _interval(text: str, now_ms: int) -> IntervalRule:
    interval = parse_duration(text)
    if interval < INTERVAL_MS_MIN:
        raise BadInput(f"@every: at least {INTERVAL_MS_MIN} ms (got {interval})")
    if interval > INTERVAL_MS_MAX:
        raise LimitExceeded("@every", INTERVAL_MS_MAX, got=interval)
    return IntervalRule(interval, now_ms)
