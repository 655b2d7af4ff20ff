"""Lengths of time as people write them: `90s`, `1h30m`, `5 minutes`, `an hour and 20 min`, `1.5h`.

A day is 24 hours, whatever clocks do in it. Months and years have no length, so they are refused.
Parts of a millisecond are rounded up, for nothing may be early.
"""

import re
from typing import Final

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.ids import Millis
from waterclock.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

DURATION_MS_MAX = 1 << 53
"""Whatever is longer is a mistake; the due-time horizon of a topic is far below."""

_NAMES: Final = {
    1: "ms msec msecs millisecond milliseconds",
    SECOND_MS: "s sec secs second seconds",
    MINUTE_MS: "m min mins minute minutes",
    HOUR_MS: "h hr hrs hour hours",
    DAY_MS: "d day days",
    7 * DAY_MS: "w week weeks",
}
UNITS: Final = {name: ms for ms, names in _NAMES.items() for name in names.split()}
_NANO = 10**9
_UNIT = "|".join(sorted(UNITS, key=len, reverse=True))
_PART = rf"(?:([0-9]{{1,18}}(?:\.[0-9]{{1,9}})?) ?|\b(an?) )({_UNIT})(?![a-z])"
_PARTS = re.compile(rf"{_PART}(?:(?:, ?| and | )?{_PART})*", re.ASCII)
_ONE = re.compile(_PART, re.ASCII)
_NO_LENGTH = re.compile(r"[0-9] ?[My](?![A-Za-z])|\b(?:months?|years?)\b", re.ASCII)


def is_duration(text: str) -> bool:
    """Tell whether a text is meant as a length of time."""
    return _PARTS.fullmatch(_plain(text)) is not None and _NO_LENGTH.search(text) is None


def parse_duration(text: str) -> Millis:
    """Return a length of time such as `90s`, `1h30m` or `5 minutes`."""
    if _NO_LENGTH.search(text):
        raise BadInput(
            f"duration: {text[:80]!r}: a month or a year has no fixed length; write days, as in 30d"
        )
    plain = _plain(text)
    if _PARTS.fullmatch(plain) is None:
        raise BadInput(
            f"duration: {text[:80]!r} is not a time such as 90s or 1h30m, 1.5h or '5 minutes'"
        )
    parts = _ONE.findall(plain)
    total = -(-sum(_nanos(number or "1") * UNITS[unit] for number, _, unit in parts) // _NANO)
    if total > DURATION_MS_MAX:
        raise LimitExceeded("duration", DURATION_MS_MAX, got=total)
    return Millis(total)


def _nanos(number: str) -> int:
    """Return a decimal number times 10^9, exactly."""
    whole, _, part = number.partition(".")
    return int(whole + part.ljust(9, "0"))


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
