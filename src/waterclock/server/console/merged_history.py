"""What several nodes did over the last hour or day, as if one had done it all."""

from collections.abc import Sequence

from waterclock.history.series import NODE
from waterclock.server.console.models import HistoryResponse

Values = list[float | None]
WORST = {series.name for series in NODE if series.fold == "max"}
"""Of these the worst of all nodes counts; anything else is the sum."""


def merged_history(parts: Sequence[HistoryResponse], unreachable: list[str]) -> HistoryResponse:
    """Return the past of all nodes, slot by slot. What one of them does not know is left out of the
    sum, and unknown if no node knows it."""
    step_ms, end_ms = parts[0].step_ms, max(part.end_ms for part in parts)
    series: dict[str, Values] = {}
    for part in parts:
        behind = (end_ms - part.end_ms) // step_ms
        for name, values in part.series.items():
            shifted = values[min(behind, len(values)) :] + [None] * min(behind, len(values))
            known = series.get(name)
            series[name] = shifted if known is None else _added(known, shifted, name in WORST)
    return HistoryResponse(step_ms=step_ms, end_ms=end_ms, series=series, unreachable=unreachable)


def _added(one: Values, other: Values, is_worst: bool) -> Values:
    return [
        b if a is None else a if b is None else max(a, b) if is_worst else a + b
        for a, b in zip(one, other, strict=True)
    ]
