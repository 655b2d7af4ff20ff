"""A regular expression for cron expressions, made from their fields.

Descriptions of an API are read by machines that make requests from them, so it says all that can
be said of a text: which values a field has, and that a range does not end before it begins.
"""

from waterclock.schedule.cron import DAY, FIELDS, MACROS
from waterclock.server.http_input import END

_STEP = "(/[1-9][0-9]{0,3})?"
_PARTS_MAX = 20


def cron_pattern() -> str:
    """Return the expression."""
    second, *others = [
        _field(field.low, field.high, field.names, is_day=field is DAY) for field in FIELDS
    ]
    macros = "|".join(MACROS)
    return f"^(({second} )?{' '.join(others)}|{macros}){END}"


def _field(low: int, high: int, names: tuple[str, ...], *, is_day: bool) -> str:
    values = [_numbers(low, high), *names]
    ranges = [f"{_numbers(first, first)}-({_numbers(first, high)})" for first in range(low, high)]
    ranges += [f"{name}-({'|'.join(names[i:])})" for i, name in enumerate(names)]
    part = rf"(\*|{'|'.join(values)}|{'|'.join(ranges)}){_STEP}" + ("|L" if is_day else "")
    return f"({part})(,({part})){{0,{_PARTS_MAX}}}"


def _numbers(low: int, high: int) -> str:
    """Return the expression of the numbers of up to two digits within bounds, both included."""
    parts = []
    for tens in range(low // 10, high // 10 + 1):
        first, last = max(low, tens * 10) % 10, min(high, tens * 10 + 9) % 10
        digit = str(first) if first == last else f"[{first}-{last}]"
        parts.append(f"{tens or '0?'}{digit}")
    return "|".join(parts)
