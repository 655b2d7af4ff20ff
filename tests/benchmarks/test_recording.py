"""What is recorded can be compared: of the code of a commit, on a machine that is quiet."""

import itertools

import pytest

from benchmarks.harness import Bar, Report, with_section
from benchmarks.recording import WAIT_S_MAX, refusal

PAGE = "# Results\n\nHow to read.\n\n## log\n\nold\n\n## publish\n\nkept\n"


def ask(*loads, changed=(), scale=1.0):
    """Ask whether to record, on a machine with these loads, one look after the other."""
    slept: list[float] = []
    found = itertools.chain(loads, itertools.repeat(loads[-1]))
    reason = refusal(list(changed), scale, load=lambda: next(found), wait=slept.append)
    return reason, sum(slept)


def test_a_quiet_machine_is_recorded_at_once():
    assert ask(0.3) == ("", 0)


def test_a_load_that_falls_is_waited_for():
    reason, slept = ask(4.0, 2.0, 0.9)

    assert reason == ""
    assert slept > 0


def test_a_machine_that_stays_busy_is_not_recorded_and_the_load_is_named():
    reason, slept = ask(3.2)

    assert "3.2" in reason
    assert slept == WAIT_S_MAX


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"changed": ["src/a.py"]}, "src/a.py"), ({"scale": 0.01}, "BENCH_SCALE")],
)
def test_changed_code_and_smoke_runs_are_not_recorded(asked, said):
    reason, slept = ask(0.3, **asked)

    assert said in reason
    assert slept == 0


@pytest.mark.parametrize("bench", ["log", "publish", "spark"])
def test_a_section_has_a_blank_line_before_and_behind(bench):
    page = with_section(PAGE, bench, f"## {bench}\n\nnew")

    assert page.count("new") == 1
    assert page.endswith("\n")
    assert not page.endswith("\n\n")
    assert "\n\n\n" not in page
    assert page.count("## ") == page.count("\n\n## ")


def test_what_is_written_again_changes_nothing_else():
    assert with_section(PAGE, "log", "## log\n\nold") == PAGE


@pytest.fixture
def report(monkeypatch):
    monkeypatch.setenv("BENCH_SCALE", "1")
    report = Report("try", {})
    report.ratio_bars = {"x_vs_a": Bar(2), "x_vs_b": Bar(1.3, is_floor=False)}
    return report


def test_a_ratio_that_misses_its_bar_is_noted(report):
    report.ratios |= {"x_vs_a": 1.9, "x_vs_b": 1.2}

    report.finish()

    assert report.notes == ["MISSED: x_vs_a must be ≥ 2."]
    assert report.shown_ratios() == ["x_vs_a 1.9 (≥ 2)", "x_vs_b 1.2 (≤ 1.3)"]


def test_a_bar_whose_peer_did_not_run_is_not_taken_for_cleared(report):
    report.ratios["x_vs_a"] = 2.0

    report.finish()

    assert report.notes == ["Not judged, for its peer did not run: x_vs_b must be ≤ 1.3."]


def test_ratios_of_a_smoke_run_are_not_judged(report, monkeypatch):
    monkeypatch.setenv("BENCH_SCALE", "0.001")
    report.ratios["x_vs_a"] = 0.1

    report.finish()

    assert report.notes == []
