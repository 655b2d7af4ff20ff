"""Figures, advice and the page of a report, without Spark: what is said, shown and escaped."""

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.browser import browser
from tests.spark.report_samples import bin_of, busy_topic, figures, quiet_topic
from waterclock.model.errors import BadInput
from waterclock.spark.jobs.report.advice import advise
from waterclock.spark.jobs.report.figures import (
    STEPS_MS,
    Growth,
    HotKey,
    TopicFigures,
    bin_edges,
    lateness_of,
    percentile,
    slots_of,
    step_of,
)
from waterclock.spark.jobs.report.number_text import (
    count_text,
    key_text,
    rate_text,
    share_text,
    size_text,
    span_text,
)
from waterclock.spark.jobs.report.page import page
from waterclock.spark.jobs.report.report import moment_ms

HOSTILE = """</title><script>alert(1)</script><img src=x onerror=alert(2)>"'&`"""

PICTURE = "WATERCLOCK_PICTURE"
"""Names a file for a picture of the page, for whoever wants to see it."""

# Figures


@given(st.integers(0, 1 << 45))
def test_a_lateness_lies_within_its_bin_and_bins_are_narrow(ms):
    low, high = bin_edges(bin_of(ms))

    assert low <= ms < high
    assert high - low == 1 or high - low <= low / 32


@given(st.integers(0, 1 << 45))
def test_bins_stand_one_behind_the_other(ms):
    assert bin_edges(bin_of(ms))[1] == bin_edges(bin_of(ms) + 1)[0]


@given(st.lists(st.integers(0, 10**7), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_at_most_three_percent_too_high(values, share):
    bins: dict[int, int] = {}
    for value in values:
        bins[bin_of(value)] = bins.get(bin_of(value), 0) + 1
    exact = sorted(values)[max(ceil(share * len(values)), 1) - 1]

    read = percentile(bins, share)

    assert read is not None
    assert exact <= read <= exact * 33 / 32


def test_there_is_no_percentile_of_nothing():
    assert percentile({}, 0.5) is None


@given(st.integers(1, 20 * 365 * 86_400_000))
def test_a_report_has_few_spans_of_time(span_ms):
    assert span_ms / step_of(span_ms) <= 96
    assert step_of(span_ms) in STEPS_MS


def test_what_spark_counted_becomes_spans_and_lateness():
    rows = [
        (0, 0, None, 10, 100, 1, 0, None),
        (1, 0, bin_of(5), 4, 40, 0, 1, 5),
        (0, 2, bin_of(1_000), 1, 10, 0, 0, 1_003),
    ]

    slots = slots_of(rows, start_ms=50_000, step_ms=1_000, count=3)

    assert [slot.start_ms for slot in slots] == [50_000, 51_000, 52_000]
    assert [slot.messages for slot in slots] == [14, 0, 1]
    assert [slot.fired for slot in slots] == [4, 0, 1]
    assert [slot.late_p50_ms for slot in slots][:2] == [5, None]
    late = lateness_of(rows)
    assert (late.messages, late.p50_ms, late.max_ms, late.early) == (5, 5, 1_003, 1)
    assert late.p99_ms == 1_003


# Words


def test_numbers_are_said_shortly():
    assert [count_text(n) for n in (0, 7, 9_999, 10_000, 1_234_567)] == [
        "0", "7", "9,999", "10 K", "1.23 M",
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 1_023, 1_536, 5 << 30)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5 GiB",
    ]
    assert [rate_text(n) for n in (0, 12_345.0, 1 / 90, 1 / 86_400)] == [
        "0/s", "12.3 K/s", "40/h", "1/d",
    ]  # fmt: skip
    assert [span_text(n) for n in (0, 14, 2_500, 90_000, 86_400_000)] == [
        "0 ms", "14 ms", "2.5 s", "1.5 min", "1 d",
    ]  # fmt: skip
    assert [share_text(n) for n in (0, 1e-6, 0.123, 1)] == ["0 %", "< 0.1 %", "12.3 %", "100 %"]


def test_a_key_is_said_as_text_if_it_is_some():
    assert key_text(b"order-7") == "order-7"
    assert key_text("Zürich".encode()) == "Zürich"
    assert key_text(b"\xff\x00") == "0xff00"
    assert key_text(b"a\nb") == "0x610a62"
    assert len(key_text(b"x" * 1_000)) == 60


def test_since_is_a_time_or_a_span_back_from_now():
    assert moment_ms("since", "", 5_000) is None
    assert moment_ms("since", "2s", 5_000) == 3_000
    assert moment_ms("since", "-2s", 5_000) == 3_000
    assert moment_ms("since", "1970-01-01T00:00:01Z", 5_000) == 1_000
    for wrong in ("yesterday", "2026-01-01", "5 parsecs"):
        with pytest.raises(BadInput, match="since"):
            moment_ms("since", wrong, 5_000)


# Advice


def titles(topic: TopicFigures) -> list[str]:
    return [each.title for each in advise(topic)]


def test_what_is_worst_is_said_first():
    levels = [each.level for each in busy_topic().advice]

    assert levels == sorted(levels, key=["bad", "warn", "note", "good"].index)
    assert busy_topic().advice[0].title == "Nobody reads for group archive"


def test_a_quiet_topic_needs_no_advice():
    assert quiet_topic().advice == ()
    assert "All is well" in page(figures(quiet_topic()))


def test_a_group_that_keeps_up_is_not_mentioned():
    topic = busy_topic()

    assert not [title for title in titles(topic) if "billing" in title]
    assert "Group mail is 23.8 min behind" in titles(topic)


def test_skew_is_blamed_on_the_hot_key_that_makes_it():
    topic = busy_topic()
    texts = {each.title: each.text for each in topic.advice}
    assert "more partitions would not help" in texts["Partition 1 has 2.5 times its fair share"]

    spread = replace(topic, hot_keys=(HotKey(key="k", partition=0, messages=5),))
    texts = {each.title: each.text for each in advise(spread)}
    assert "No single key" in texts["Partition 1 has 2.5 times its fair share"]


def test_a_disk_that_fills_up_is_told_unless_something_ends_the_growth():
    topic = busy_topic()
    growth = replace(topic.growth, settled_bytes=None, retention_ms=None, disk_full_days=3.0)
    assert "The disk is full in 3 d at this rate" in titles(replace(topic, growth=growth))
    assert not [title for title in titles(topic) if "disk" in title]


def test_growth_without_end_is_a_note():
    growth: Growth = replace(busy_topic().growth, settled_bytes=None, disk_full_days=300.0)

    assert "No retention: the topic grows for ever" in titles(replace(busy_topic(), growth=growth))


# The page


class Page(HTMLParser):
    """Reads a page: is it well-formed, and does it ask for anything?"""

    VOID = ("meta", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_stands_alone_and_is_well_formed():
    text = page(figures(busy_topic(), quiet_topic()))
    read = Page(text)

    assert not read.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert all(link.startswith("#topic-") for link in read.links)
    assert not re.search(r"url\(|@import|https?:", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text


def test_the_page_shows_what_there_is_and_leaves_out_what_is_not():
    words = " ".join(Page(page(figures(busy_topic()))).words)
    for shown in ("3.98 M", "customer-0717", "SMTP 550: no such mailbox", "Still to come", "p99"):
        assert shown in words

    words = " ".join(Page(page(figures(quiet_topic()))).words)
    for absent in ("Dead letters", "Hot keys", "Groups", "Still to come", "How late"):
        assert absent not in words


def test_a_page_without_topics_says_so():
    assert "There is no topic" in page(figures())


def test_hostile_names_keys_and_reasons_are_shown_not_obeyed():
    topic = busy_topic(HOSTILE)
    topic = replace(
        topic,
        hot_keys=tuple(replace(key, key=HOSTILE) for key in topic.hot_keys),
        groups=tuple(replace(group, group=HOSTILE) for group in topic.groups),
        dead=tuple(replace(each, reason=HOSTILE, group=HOSTILE) for each in topic.dead),
        partitions=tuple(replace(each, problem=HOSTILE) for each in topic.partitions),
    )
    topic = replace(topic, advice=advise(topic))

    text = page(replace(figures(topic), node=HOSTILE, version=HOSTILE))

    read = Page(text)
    assert not read.tags & {"script", "img"}
    # Everything that is shown: in the heading, the title, the keys, the groups and the reasons.
    assert " ".join(read.words).count("alert(1)") >= 5


def test_the_page_fits_a_phone_and_a_desk(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page(figures(busy_topic(), busy_topic("x" * 200))))

    with browser(tmp_path / "profile") as shown:
        shown.open(file.as_uri())
        shown.wait("document.readyState == 'complete' && !!document.querySelector('main')")
        for width, seen, hidden in ((1240, ".wide", ".narrow"), (360, ".narrow", ".wide")):
            shown.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=800, deviceScaleFactor=1, mobile=width < 500,
            )  # fmt: skip
            assert shown.value("document.documentElement.scrollWidth") <= width
            assert shown.value(f"document.querySelector('{seen} svg').clientWidth") > 200
            assert shown.value(f"document.querySelector('{hidden}').clientHeight") == 0
        if name := os.environ.get(PICTURE):
            shown.picture(Path(name))
