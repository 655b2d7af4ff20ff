"""Single times as people write them, by the calendar of a time zone.

    2026-12-24   2026-12-24 18:00   2026-12-24T18:00:00.5Z   2026-12-24T18:00+01:00
    24 December 2026 18:00   Dec 24, 2026 6pm
    18:00   6:30pm   noon                the next one
    today 18:00   tomorrow   tomorrow at 9:00   9am tomorrow
    friday 18:00                         the next time that it is, perhaps today
    next friday                          the first friday after today

Without a time of day a day begins at 00:00. Of since and until, the past is meant: `18:00` is the
last one, and so is `friday 18:00`; `yesterday 9:00` and `last friday` are read too.

A text that means two things means nothing here: `12/11/2026`, `midnight`, `this friday`. A time is
never moved to fit: one that clocks skip is refused, of one that they repeat the first is meant, and
parts of a millisecond are rounded up, for nothing may be early.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis
from waterclock.schedule.calendar import instant_of, local_of, zone_of

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)


def _either(names: tuple[str, ...]) -> str:
    """Return a pattern for names, also cut to three letters."""
    return "|".join(f"{name[:3]}(?:{name[3:]})?" for name in names)


CLOCK = (
    r"(?:noon|[0-9]{1,2} ?[ap]m"
    r"|[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?: ?[ap]m)?)"
)
WEEKDAY = f"(?:{_either(WEEKDAYS)})"
_NUMBER = r"[0-9]{1,2}(?:st|[nr]d|th)?"
_NAMED = (
    rf"{_NUMBER} (?:{_either(_MONTHS)}),? [0-9]{{4}}|(?:{_either(_MONTHS)}) {_NUMBER},? [0-9]{{4}}"
)
_WORD = rf"today|tomorrow|yesterday|(?:(?:next|last) )?{WEEKDAY}"
_ISO = re.compile(
    rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})"
    rf"(?:(?:t| | at )({CLOCK}) ?(z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?",
    re.ASCII,
)
_DAY_FIRST = re.compile(rf"(?:on )?({_NAMED}|{_WORD})(?:,? (?:at )?({CLOCK}))?", re.ASCII)
_CLOCK_FIRST = re.compile(rf"(?:at )?({CLOCK})(?:,? (?:on )?({_NAMED}|{_WORD}))?", re.ASCII)
_CLOCK_PARTS = re.compile(
    r"([0-9]+)(?::([0-9]+))?(?::([0-9]+))?(?:\.([0-9]+))? ?([ap])?m?", re.ASCII
)
_DATE_PARTS = re.compile(r"[0-9]+|[a-z]{3,}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day; the last parts of a second are rounded up."""

    time: time
    nanos: int = 0

    @classmethod
    def parse(cls, text: str) -> "Clock":
        """Return a time of day of the form CLOCK; raises ValueError."""
        if text == "noon":
            return cls(time(12))
        match = _CLOCK_PARTS.fullmatch(text)
        assert match is not None
        hour, minute, second, fraction, half = match.groups()
        number = int(hour)
        if half is not None:
            if not 1 <= number <= 12:
                raise ValueError("am and pm go with hours from 1 to 12")
            number = number % 12 + (12 if half == "p" else 0)
        nanos = int((fraction or "0").ljust(9, "0"))
        return cls(time(number, int(minute or 0), int(second or 0)), nanos)


@dataclass(frozen=True, slots=True)
class Here:
    """When and where a text is read."""

    now_ms: int
    zone: str
    is_past: bool = False
    """Of two days that a text may mean, the one before now is meant."""

    def read(self, text: str) -> Millis | None:
        """Return the instant of a lower-case text; None if it is of no form known here.

        Raises BadInput if there is no such time, or it has passed.
        """
        try:
            if (match := _ISO.fullmatch(text)) is not None:
                return self._on_date(date.fromisoformat(match[1]), match[2], match[3])
            if (match := _DAY_FIRST.fullmatch(text)) is not None:
                return self._on_day(match[1], match[2])
            if (match := _CLOCK_FIRST.fullmatch(text)) is not None:
                return self._on_day(match[2], match[1])
        except (ValueError, OverflowError) as error:
            raise BadInput(f"{text!r}: {error}") from error
        return None

    def _on_date(self, day: date, clock: str | None, offset: str | None = None) -> Millis:
        at = Clock.parse(clock or "00:00")
        if offset is None:
            return self._instant(day, at)
        sign = -1 if offset[0] == "-" else 1
        digits = offset[1:].replace(":", "").ljust(4, "0")
        if offset != "z" and int(digits[2:]) > 59:
            raise ValueError("minutes of an offset must be in 0..59")
        hours, minutes = (0, 0) if offset == "z" else (int(digits[:2]), int(digits[2:]))
        ahead = sign * timedelta(hours=hours, minutes=minutes)
        if abs(ahead) >= _DAY:
            raise ValueError("an offset must be less than a day")
        instant = (datetime.combine(day, at.time, UTC) - ahead - _EPOCH) // timedelta(
            milliseconds=1
        )
        return _rounded(instant, at)

    def _on_day(self, day: str | None, clock: str | None) -> Millis:
        """Return the time of a day that is named, or of the one that is next."""
        at = Clock.parse(clock or "00:00")
        today = local_of(self.now_ms, self._zone).date()
        if day is None:
            return self._nearest(today, 1, at)
        if day in ("today", "tomorrow", "yesterday"):
            moved = {"today": 0, "tomorrow": 1, "yesterday": -1}[day]
            return self._not_passed(self._instant(today + moved * _DAY, at))
        word, _, name = day.rpartition(" ")
        number = _index(WEEKDAYS, name)
        if number is None:
            return self._on_date(_named_date(day), clock)
        if word == "next":
            return self._instant(today + ((number - today.weekday() - 1) % 7 + 1) * _DAY, at)
        if word == "last":
            before = today - ((today.weekday() - number - 1) % 7 + 1) * _DAY
            return self._not_passed(self._instant(before, at))
        return self._nearest(today + (number - today.weekday()) % 7 * _DAY, 7, at)

    def _nearest(self, day: date, step: int, at: Clock) -> Millis:
        """Return the next time that it is so late on a day that comes every `step` days."""
        if self.is_past:
            found = self._instant(day, at)
            return found if found <= self.now_ms else self._instant(day - step * _DAY, at)
        found = self._instant(day, at)
        return found if found > self.now_ms else self._instant(day + step * _DAY, at)

    def _not_passed(self, instant: Millis) -> Millis:
        if instant < self.now_ms and not self.is_past:
            raise ValueError(f"it has passed in {self.zone}")
        return instant

    def _instant(self, day: date, at: Clock) -> Millis:
        instant = instant_of(datetime.combine(day, at.time), self._zone)
        if instant is None:
            raise ValueError(f"clocks in {self.zone} skip it")
        return _rounded(instant, at)

    @property
    def _zone(self) -> ZoneInfo:
        return zone_of(self.zone)


def has_offset(text: str) -> bool:
    """Tell whether a lower-case text is a date and time with Z or an offset behind it."""
    match = _ISO.fullmatch(text)
    return match is not None and match[3] is not None


def _rounded(instant: int, at: Clock) -> Millis:
    if instant < 0:
        raise ValueError("it is before 1970")
    return Millis(instant - -at.nanos // 1_000_000)


def _index(names: tuple[str, ...], text: str) -> int | None:
    """Return which name it is, in full or by three letters."""
    found = [number for number, name in enumerate(names) if text in (name, name[:3])]
    return found[0] if found else None


def _named_date(text: str) -> date:
    """Return `24 December 2026` or `December 24th, 2026`."""
    month, numbers = 0, []
    for part in _DATE_PARTS.findall(text):
        if part.isdecimal():
            numbers.append(int(part))
        else:
            month = (_index(_MONTHS, part) or 0) + 1
    return date(numbers[1], month, numbers[0])
