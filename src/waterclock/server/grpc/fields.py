"""What the numbers of a request may be; the error names the field and its limit."""

from collections.abc import Sequence
from typing import Any, Protocol

from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.message import ACKS, Acks

Ranges = list[tuple[int, int]]


class EnumType(Protocol):
    def values(self) -> list[Any]: ...


def member_of(enum: EnumType, field: str, value: int) -> int:
    """Return a value of an enum; raise unless it is one that this release knows."""
    if value not in enum.values():
        raise BadInput(f"{field}: {value} is not one of {sorted(enum.values())}")
    return value


def acks_of(value: int) -> Acks:
    """Return when a publish is to be answered; raise unless it is a value that this release
    knows."""
    if not 0 <= value < len(ACKS):
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(ACKS))
        raise BadInput(f"acks: {value} is not one of {known}")
    return ACKS[value]


def check_not_negative(**fields: int) -> None:
    """Raise BadInput, naming the field, if one is negative."""
    for name, value in fields.items():
        if value < 0:
            raise BadInput(f"{name} must not be negative (got {value})")


def check_range(field: str, value: int, limit: int) -> None:
    """Raise unless the value is within 0 and the limit, both included."""
    check_not_negative(**{field: value})
    if value > limit:
        raise LimitExceeded(field, limit, got=value)


def ranges_of(bounds: Sequence[int]) -> Ranges:
    """Return `start, end, start, end, ...` as pairs; raise unless they ascend and none is empty."""
    if len(bounds) % 2:
        raise BadInput(f"bounds: starts and ends must pair up (got {len(bounds)} numbers)")
    last = 0
    for i in range(0, len(bounds), 2):
        start, end = bounds[i], bounds[i + 1]
        if not last <= start < end:
            raise BadInput(
                f"bounds: ranges must ascend, each with its end above its start "
                f"(got [{start}, {end}) after {last})"
            )
        last = end
    return list(zip(bounds[::2], bounds[1::2], strict=True))
