"""Plots are well-formed, escaped, and show what they were given."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.spark.jobs.report.plots import (
    HEIGHT,
    Bar,
    Mark,
    Series,
    columns,
    legend,
    nice_ticks,
    over_time,
    share_bar,
    time_ticks,
)

HOUR_MS = 3_600_000
NOON_MS = 1_794_744_000_000
"""2026-11-15 12:00 UTC."""


def pictures(markup: str) -> list[ElementTree.Element]:
    """Return the SVGs of a plot: the wide one and the narrow one."""
    assert markup.count("<svg") == 2
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", markup, re.DOTALL)]


@given(st.floats(0, 1e15, allow_nan=False), st.integers(2, 8))
def test_ticks_reach_over_the_top_and_are_not_too_many(top, count):
    ticks = nice_ticks(top, count)

    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-9)
    assert 2 <= len(ticks) <= 2 * count + 2
    assert ticks == sorted(set(ticks))


def test_ticks_are_round():
    assert nice_ticks(87, 4) == [0, 25, 50, 75, 100]
    assert nice_ticks(4, 4) == [0, 1, 2, 3, 4]
    assert nice_ticks(0) == [0, 1]


def test_moments_are_round_and_say_the_day_when_it_changes():
    ticks = time_ticks(NOON_MS - 13 * HOUR_MS, NOON_MS, 5)

    assert [text for _, text in ticks] == ["15 Nov", "03:00", "06:00", "09:00", "12:00"]


@given(st.integers(0, 4 * 10**12), st.integers(1, 10**11), st.integers(2, 12))
def test_moments_lie_within_the_span_and_are_not_too_many(start_ms, span_ms, count):
    ticks = time_ticks(start_ms, start_ms + span_ms, count)

    assert all(start_ms <= at <= start_ms + span_ms for at, _ in ticks)
    assert len(ticks) <= count + 1


def test_a_line_over_time_has_a_title_for_each_span():
    series = [Series("all", [1.0, None, 3.0, 2.0]), Series("some", [0.0, 0.0, 1.0, None], 2)]
    starts = [NOON_MS + i * HOUR_MS for i in range(4)]

    for picture in pictures(over_time(starts, HOUR_MS, series, show=str, label="Rates")):
        titles = [each.text for each in picture.iter("title")]
        assert titles[0] == "2026-11-15 12:00\nall: 1.0\nsome: 0.0"
        assert titles[1] == "2026-11-15 13:00\nsome: 0.0"
        assert len(titles) == 4
        assert picture.get("role") == "img"
        assert picture.get("aria-label") == "Rates"


def test_a_gap_in_a_line_is_left_open():
    starts = [NOON_MS + i * HOUR_MS for i in range(4)]
    drawn = over_time(starts, HOUR_MS, [Series("a", [1.0, 2.0, None, 1.0])], show=str, label="x")

    picture = pictures(drawn)[0]
    assert len(list(picture.iter("path"))) == 1
    assert len(list(picture.iter("circle"))) == 1


@given(st.lists(st.floats(0, 1e12, allow_nan=False), min_size=1, max_size=100))
def test_columns_stay_inside_the_picture_and_none_is_lost(values):
    bars = [Bar(str(i), value, f"bar {i}") for i, value in enumerate(values)]

    for picture in pictures(columns(bars, show=str, label="x")):
        width = float(picture.get("viewBox", "").split()[2])
        drawn = [each for each in picture.iter("rect") if each.get("class") == "b1"]
        assert len(drawn) == len(values)
        for each in drawn:
            x, y = float(each.get("x", "")), float(each.get("y", ""))
            assert 0 <= x <= x + float(each.get("width", "")) <= width
            assert 0 <= y <= y + float(each.get("height", "")) <= HEIGHT


def test_a_column_is_as_high_as_its_value():
    bars = [Bar("a", 50, ""), Bar("b", 100, ""), Bar("c", 0, ""), Bar("d", 1e-9, "")]
    picture = pictures(columns(bars, show=str, label="x"))[0]

    heights = [
        float(each.get("height", "")) for each in picture.iter("rect") if each.get("class") == "b1"
    ]
    assert heights[0] * 2 == pytest.approx(heights[1])
    assert heights[2] == 0
    assert heights[3] >= 1  # it is seen


def test_marks_are_drawn_where_they_belong():
    bars = [Bar(str(i), 1, "") for i in range(4)]
    picture = pictures(columns(bars, show=str, label="x", marks=[Mark("p50 3 ms", 2.0)]))[0]

    (line,) = [each for each in picture.iter("line") if each.get("class") == "mark"]
    rects = [each for each in picture.iter("rect") if each.get("class") == "hit"]
    assert line.get("x1") == rects[2].get("x")
    assert "p50 3 ms" in [each.text for each in picture.iter("text")]


HOSTILE = """<script>alert("1")</script>'&"""


def test_text_from_outside_stays_text():
    drawn = (
        columns([Bar(HOSTILE, 1, HOSTILE)], show=lambda _: HOSTILE, label=HOSTILE)
        + over_time([NOON_MS], 1_000, [Series(HOSTILE, [1.0])], show=str, label=HOSTILE)
        + legend([Series(HOSTILE, [])])
    )

    assert "<script" not in drawn
    assert 'label="<' not in drawn
    for svg in re.findall(r"<svg.*?</svg>", drawn, re.DOTALL):
        assert ElementTree.fromstring(svg).get("aria-label") == HOSTILE


@pytest.mark.parametrize(("share", "width"), [(0.5, "50.00"), (-1, "0.00"), (7, "100.00")])
def test_a_share_is_a_bar_of_that_width(share, width):
    assert f"width:{width}%" in share_bar(share)
