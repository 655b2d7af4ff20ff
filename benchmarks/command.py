"""A contest as a program: flags, progress, the table, the line for machines, and the record."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from benchmarks.client import Stopwatch
from benchmarks.contest import Contest
from benchmarks.harness import Report, Tick, scale
from benchmarks.machine import MEMORY_FILE_SYSTEMS, facts, file_system, scratch_folder
from benchmarks.recording import options_of


class Cases(Protocol):
    """Cases that need a server to themselves."""

    def run(self) -> None:
        """Measure them."""
        ...


Watches = dict[str, list[Stopwatch]]
Finish = Callable[[Report, Watches], None]
Plots = Mapping[str, tuple[str, Mapping[str, str]]]
"""By file: a title, and the cases with their labels."""


def run_bench(
    contest: Contest,
    about: str | None,
    finish: Finish,
    *,
    plots: Plots,
    then: Callable[[Report, Path, Tick], Cases] | None = None,
    steps: int = 0,
) -> None:
    """Run a contest, and what comes after it, in so many steps."""
    module = f"benchmarks.{contest.bench}"
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = options_of(parser, what="RESULTS.md and plots")
    report = measure(contest, finish, then=then, steps=steps)
    if options.record:
        report.record(f"python -m {module} --record")
        draw(report, plots)
    report.publish()


def measure(
    contest: Contest,
    finish: Finish,
    *,
    then: Callable[[Report, Path, Tick], Cases] | None = None,
    steps: int = 0,
) -> Report:
    """Run all rounds and fill a report."""
    # Not above: the processes this one starts would load it in vain.
    from benchmarks.display import progress

    with scratch_folder() as scratch:
        report = Report(contest.bench, facts(scratch, scale=scale()))
        if file_system(scratch) in MEMORY_FILE_SYSTEMS:
            report.notes.append("The scratch folder is in memory: fsync costs nothing there.")
        with progress(contest.bench, steps=contest.steps() + steps) as tick:
            watches = contest.run(report, scratch, tick)
            if then is not None:
                then(report, scratch, tick).run()
    finish(report, watches)
    report.finish()
    return report


def draw(report: Report, plots: Plots) -> None:
    """Draw what was measured of each plot."""
    measured = {result.case for result in (*report.results, *report.peers)}
    for name, (title, cases) in plots.items():
        report.plot(name, title, {c: label for c, label in cases.items() if c in measured})
