"""Cron expressions: which local times match?

Five fields (minute, hour, day of month, month, day of week), or six with seconds before them. Each
is `*`, a value, a range `a-b`, a step `*/n`, `a-b/n` or `a/n`, or a list of these; months and
weekdays also by name (`JAN`, `MON`), Sunday is 0 or 7, and `L` is the last day of the month. As in
Vixie's cron, if both day fields are restricted a day matches when either does; a field that begins
with `*` is not restricted. `@hourly` and its like stand for expressions.
"""

import re
from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime
from itertools import product

from waterclock.model.errors import BadInput

TEXT_CHARS_MAX = 256
YEARS_MAX = 10
"""Feb 29 may be eight years away; nothing that matches at all is farther."""

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
LAST_DAY = 0
"""Stands for `L` among the days of a month."""

_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_PART = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,4}))?", re.ASCII)
_DAYS_OF_MONTH = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def parse(self, text: str) -> frozenset[int]:
        """Return the values a field allows."""
        return frozenset(value for part in text.split(",") for value in self._part(part))

    def _part(self, text: str) -> range | tuple[int]:
        if text.upper() == "L" and self is DAY:
            return (LAST_DAY,)
        match = _PART.fullmatch(text)
        if match is None:
            raise BadInput(f"cron {self.name}: {text!r} is not a value, range or step")
        first, last, step = match.groups()
        if first == "*":
            if last is not None:
                raise BadInput(f"cron {self.name}: {text!r} is not a range")
            low, high = self.low, self.high
        else:
            low = self._value(first)
            high = self._value(last) if last else self.high if step else low
        if low > high:
            raise BadInput(f"cron {self.name}: {text!r} ends before it begins")
        if step is not None and int(step) < 1:
            raise BadInput(f"cron {self.name}: a step must be at least 1")
        return range(low, high + 1, int(step or 1))

    def _value(self, text: str) -> int:
        if text.upper() in self.names:
            return self.names.index(text.upper()) + self.low
        if not text.isdecimal() or len(text) > 4 or not self.low <= int(text) <= self.high:
            raise BadInput(f"cron {self.name}: {text!r} is not in {self.low}-{self.high}")
        return int(text)


SECOND = _Field("second", 0, 59)
MINUTE = _Field("minute", 0, 59)
HOUR = _Field("hour", 0, 23)
DAY = _Field("day of month", 1, 31)
MONTH = _Field("month", 1, 12, tuple(_MONTHS))
WEEKDAY = _Field("day of week", 0, 7, tuple(_WEEKDAYS))
FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


class Cron:
    """A parsed cron expression; it knows local times, not zones."""

    def __init__(self, text: str) -> None:
        self.text = text
        expression = MACROS.get(text.strip().lower(), text)
        parts = expression.split() if len(text) <= TEXT_CHARS_MAX else []
        if len(parts) not in (5, 6):
            raise BadInput(
                "cron: expected 5 or 6 fields, as in '0 9 * * MON', or one of "
                f"{', '.join(MACROS)} (at most {TEXT_CHARS_MAX} characters)"
            )
        parts = parts if len(parts) == 6 else ["0", *parts]
        values = [field.parse(part) for field, part in zip(FIELDS, parts, strict=True)]
        seconds, minutes, hours, self._days, self._months, weekdays = values
        self._weekdays = frozenset(day % 7 for day in weekdays)
        self._is_either = not parts[3].startswith("*") and not parts[5].startswith("*")
        self.is_interval = parts[1].startswith("*") or parts[2].startswith("*")
        """It goes on and on rather than at times of day, as Vixie's cron tells them apart."""
        self._check_days(is_any_weekday=parts[5].startswith("*"))
        self._times = [sorted(hours), sorted(minutes), sorted(seconds)]

    def __repr__(self) -> str:
        return f"<Cron {self.text}>"

    def _check_days(self, *, is_any_weekday: bool) -> None:
        """Refuse days that never come, such as February 30."""
        if not is_any_weekday and self._is_either:
            return
        longest = max(_DAYS_OF_MONTH[month - 1] for month in self._months)
        if min(self._days) > longest:
            raise BadInput(f"cron day of month: no month given has a day {min(self._days)}")

    def matches_day(self, day: date) -> bool:
        """Say whether anything happens on a day."""
        if day.month not in self._months:
            return False
        in_month = day.day in self._days or (
            LAST_DAY in self._days and day.day == monthrange(day.year, day.month)[1]
        )
        in_week = day.isoweekday() % 7 in self._weekdays
        return in_month or in_week if self._is_either else in_month and in_week

    def matches(self, time: datetime) -> bool:
        """Say whether a local time, of whole seconds, is one of these."""
        hours, minutes, seconds = self._times
        return (
            time.hour in hours
            and time.minute in minutes
            and time.second in seconds
            and self.matches_day(time.date())
        )

    def next_from(self, time: datetime) -> datetime | None:
        """Return the first local time at or after a given one (naive, whole seconds)."""
        if self.matches_day(time.date()):
            clock = self._clock_from(time.hour, time.minute, time.second)
            if clock is not None:
                return time.replace(hour=clock[0], minute=clock[1], second=clock[2])
        day = self._day_after(time.date())
        if day is None:
            return None
        hour, minute, second = (values[0] for values in self._times)
        return datetime(day.year, day.month, day.day, hour, minute, second)

    def _clock_from(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """Return the first time of day at or after the one given."""
        hours, minutes, seconds = self._times
        if hour in hours:
            if minute in minutes and second <= seconds[-1]:
                return hour, minute, seconds[bisect_left(seconds, second)]
            if minute < minutes[-1]:
                return hour, minutes[bisect_left(minutes, minute + 1)], seconds[0]
        if hour < hours[-1]:
            return hours[bisect_left(hours, hour + 1)], minutes[0], seconds[0]
        return None

    def _day_after(self, day: date) -> date | None:
        """Return the next day on which anything happens."""
        for year, month in product(range(day.year, day.year + YEARS_MAX + 1), sorted(self._months)):
            if (year, month) < (day.year, day.month) or year > date.max.year:
                continue
            is_this = (year, month) == (day.year, day.month)
            for number in range(day.day + 1 if is_this else 1, monthrange(year, month)[1] + 1):
                candidate = date(year, month, number)
                if self.matches_day(candidate):
                    return candidate
        return None
