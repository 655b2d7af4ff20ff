"""Families of metrics, as Prometheus calls what has one name, and where their samples come from.

Samples are made as they are taken, so that a long family can be made in steps.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from waterclock.node.counters import Histogram

PREFIX = "waterclock_"

Sample = tuple[Sequence[str], float]


class Family(NamedTuple):
    """One metric and where its samples come from."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    documentation: str
    labels: Sequence[str]
    samples: Iterable[Sample]


def counter(
    name: str, documentation: str, labels: Sequence[str], samples: Iterable[Sample]
) -> Family:
    """Return a family of counters."""
    return Family(CounterMetricFamily, PREFIX + name, documentation, labels, samples)


def gauge(
    name: str, documentation: str, labels: Sequence[str], samples: Iterable[Sample]
) -> Family:
    """Return a family of gauges."""
    return Family(GaugeMetricFamily, PREFIX + name, documentation, labels, samples)


def one_counter(name: str, documentation: str, value: float) -> Family:
    """Return a counter without labels."""
    return counter(name, documentation, (), [((), value)])


def one_gauge(name: str, documentation: str, value: float) -> Family:
    """Return a gauge without labels."""
    return gauge(name, documentation, (), [((), value)])


def histogram(
    name: str,
    documentation: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], Sequence[Histogram]]],
) -> HistogramMetricFamily:
    """Return histograms of milliseconds as a family of seconds; those of one sample are summed."""
    family = HistogramMetricFamily(PREFIX + name, documentation, labels=labels)
    for values, parts in samples:
        if parts:
            _add(family, values, parts)
    return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], parts: Sequence[Histogram]) -> None:
    bounds = [str(bound / 1_000) for bound in parts[0].bounds] + ["+Inf"]
    counts = [sum(column) for column in zip(*(part.counts for part in parts), strict=True)]
    buckets = []
    total = 0
    for bound, count in zip(bounds, counts, strict=True):
        # Prometheus wants them cumulative.
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, sum(part.total for part in parts) / 1_000)
