"""Numbers and bytes in words for people: short, with three digits, in units they know."""

from datetime import UTC, datetime

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "K", "M", "G", "T")
_SPANS = (
    (365 * 86_400_000, "y"),
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "min"),
    (1_000, "s"),
)
KEY_CHARS_MAX = 60
NONE_TEXT = "\N{EN DASH}"


def count_text(count: float) -> str:
    """Say a count: `842`, `1,834`, `12.3 K`, `1.05 M`."""
    if count == int(count) and abs(count) < 10_000:
        return f"{count:,.0f}"
    return _scaled(count, 1_000, _COUNTS)


def size_text(size: float) -> str:
    """Say a number of bytes: `512 B`, `1.5 MiB`."""
    return _scaled(size, 1_024, _SIZES)


def rate_text(rate: float) -> str:
    """Say how many a second; slow ones a minute, an hour, a day."""
    for factor, unit in ((1, "s"), (60, "min"), (3_600, "h")):
        if rate * factor >= 1 or rate == 0:
            return f"{count_text(rate * factor)}/{unit}"
    return f"{count_text(rate * 86_400)}/d"


def span_text(ms: float) -> str:
    """Say how long: `14 ms`, `2.5 s`, `3.2 d`."""
    for factor, unit in _SPANS:
        if ms >= factor:
            return f"{_digits(ms / factor)} {unit}"
    return f"{_digits(ms)} ms"


def share_text(share: float) -> str:
    """Say a share in percent."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{_digits(percent)} %"


def time_text(ms: int) -> str:
    """Say a moment, in UTC."""
    return f"{datetime.fromtimestamp(ms / 1_000, UTC):%Y-%m-%d %H:%M} UTC"


def day_text(ms: int) -> str:
    """Say a moment of this year, in UTC."""
    moment = datetime.fromtimestamp(ms / 1_000, UTC)
    return f"{moment.day} {moment:%b %H:%M}"


def key_text(key: bytes) -> str:
    """Say a key: as text if it is some, as hex otherwise; cut if it is long."""
    try:
        text = key.decode()
        text = text if text.isprintable() else "0x" + key.hex()
    except UnicodeDecodeError:
        text = "0x" + key.hex()
    return text if len(text) <= KEY_CHARS_MAX else text[: KEY_CHARS_MAX - 1] + "…"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= base * (0.9995 if base == 1_000 else 1) and power < len(units) - 1:
        value /= base
        power += 1
    return f"{_digits(value)} {units[power]}".rstrip()


def _digits(value: float) -> str:
    if abs(value) >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
