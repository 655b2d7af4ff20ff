"""Bars, quantiles and rates as people read them."""

import io

import pytest
from rich.console import Console

from waterclock.cli.output.figures import BAR_CHARS, bars, ms_text, quantiles, rate_text


def drawn(encoding: str, counts: list[tuple[str, int]]) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    out = Console(file=file, width=100)
    with out.capture() as captured:
        out.print(bars(out, counts))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_bars_are_as_long_as_their_counts_and_what_is_there_is_seen():
    lines = drawn("utf-8", [("1 h", 2_000), ("1 d", 1_000), ("30 d", 1), ("later", 0)])

    assert lines[0] == f"  1 h {'█' * BAR_CHARS} 2,000"
    assert [line.count("█") for line in lines] == [BAR_CHARS, BAR_CHARS // 2, 1, 0]
    assert lines[3].split() == ["later", "0"]


def test_bars_are_plain_where_blocks_cannot_be_shown():
    assert drawn("ascii", [("1 h", 1)]) == [f"1 h {'#' * BAR_CHARS} 1"]


def test_quantiles_are_values_that_were_measured():
    spread = quantiles([float(n) for n in range(1_000, 0, -1)])

    assert spread == {"p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0, "max": 1_000.0}
    assert quantiles([7.0])["p50"] == quantiles([7.0])["max"] == 7.0
    assert quantiles([]) == {}


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.4213, "0.421 ms"), (12.34, "12.3 ms"), (123.4, "123 ms"), (1_500, "1.5 s")],
)
def test_short_times_have_three_digits(ms, text):
    assert ms_text(ms) == text


def test_rates_have_three_digits():
    assert [rate_text(1_234_567, 1), rate_text(5, 2), rate_text(1, 0)] == [
        "1,230,000/s", "2.5/s", "0/s",
    ]  # fmt: skip
