"""Numbers drawn for people: bars of counts, rates, and how a set of measurements is spread."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR_CHARS = 32
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


def bars(out: "Console", counts: Sequence[tuple[str, int]]) -> "Table":
    """Return a small histogram: one line with a label, a bar and a count for each."""
    from rich.table import Table
    from rich.text import Text

    char = "█" if out.encoding.startswith("utf") else "#"
    most = max((count for _, count in counts), default=0)
    drawn = Table.grid(padding=(0, 1))
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(no_wrap=True)
    drawn.add_column(no_wrap=True)
    for label, count in counts:
        # What is there is seen, however little it is beside the rest.
        length = max(round(BAR_CHARS * count / most), 1) if count else 0
        drawn.add_row(
            Text(label, style="dim"), Text(char * length, style="cyan"), Text(f"{count:,}")
        )
    return drawn


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of the values, sorted, does not exceed."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return how values are spread, by the names of `QUANTILES`; empty if there are none."""
    ordered = sorted(values)
    return {name: quantile(ordered, share) for name, share in QUANTILES} if ordered else {}


def ms_text(ms: float) -> str:
    """Return a short time with three digits: `0.42 ms`, `12.3 ms`, `1.5 s`."""
    if ms >= 1_000:
        return f"{ms / 1_000:.3g} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def rate_text(count: float, seconds: float) -> str:
    """Return a rate with three digits, as `1,230/s`."""
    rate = count / seconds if seconds > 0 else 0.0
    return f"{float(f'{rate:.3g}'):,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
