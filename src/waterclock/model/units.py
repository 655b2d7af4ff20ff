"""Sizes and times as people write them: `512MiB`, `30s`, `100_000`.

A text is a whole number and perhaps a unit; a bare number counts the smallest unit (bytes,
milliseconds). `MB` means `MiB`, 2^20, as in PostgreSQL: a limit must not move by five percent
with one letter. Reading undoes showing: `parse(show(n)) == n`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

TEXT_CHARS_MAX = 40
"""No honest amount is longer; past it we refuse before counting the digits."""

_AMOUNT = re.compile(r"([0-9]+(?:_[0-9]+)*) ?([a-z]*)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Units:
    """A family of units, the smallest first; the first spelling of a factor is the one shown."""

    noun: str
    factors: Mapping[str, int]

    def parse(self, text: str) -> int:
        """Return the amount in the smallest unit; raise ValueError if `text` is not one."""
        match = _AMOUNT.fullmatch(text.strip()) if len(text) <= TEXT_CHARS_MAX else None
        if match is None:
            raise ValueError(f"not {self.noun}")
        number, unit = match.groups()
        for name, factor in self.factors.items():
            if unit.lower() in ("", name.lower()):
                return int(number) * factor
        raise ValueError(f"not a unit of {self.noun}")

    def show(self, amount: int) -> str:
        """Return `amount` in the largest unit that leaves a whole number."""
        (unit, factor), *larger = self.factors.items()
        for name, size in larger:
            if size > factor and amount and amount % size == 0:
                unit, factor = name, size
        return f"{amount // factor}{unit}"


SIZE = Units(
    "a size",
    {
        "B": 1,
        "KiB": KIB,
        "KB": KIB,
        "MiB": MIB,
        "MB": MIB,
        "GiB": GIB,
        "GB": GIB,
        "TiB": TIB,
        "TB": TIB,
    },
)
DURATION = Units(
    "a time",
    {
        "ms": 1,
        "s": SECOND_MS,
        "m": MINUTE_MS,
        "h": HOUR_MS,
        "d": DAY_MS,
    },
)
COUNT = Units("a number", {"": 1})
