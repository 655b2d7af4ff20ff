"""The log of one partition: append, read, recognise repeats, open. On one core.

    python -m benchmarks.log              the table, then one line of JSON
    python -m benchmarks.log --record     also writes RESULTS.md and the plots beside it

Takes some minutes and 4 GB of disk; `BENCH_SCALE=0.001` takes seconds and proves only that it runs.
There are no peers here: `publish` and `consume` compare whole servers.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Tick, rounds_of, scale
from benchmarks.log_append import ROUNDS, measure_append_cpu, measure_appends, setups
from benchmarks.log_ids import ROUNDS as IDS_ROUNDS
from benchmarks.log_ids import child_ids, measure_ids
from benchmarks.log_opening import (
    Openings,
    child_close,
    child_fill,
    child_open,
    child_read,
    leave,
    openings_steps,
)
from benchmarks.machine import (
    MEMORY_FILE_SYSTEMS,
    facts,
    file_system,
    pin_to_one_core,
    scratch_folder,
)
from benchmarks.recording import options_of

MODULE = "benchmarks.log"
CASES = (
    "append_1000_group_dedup",
    "append_1000_interval",
    "append_1_cpu_us",
    "read_frames",
    "dedup_ids",
    "dedup_rss_mb",
    "dedup_start_s",
    "open_sidecars_s",
    "open_rebuild_s",
)
"""The names that are compared over time; all others are extra."""
ORDER = {case: number for number, case in enumerate(CASES)}
ASIDE: dict[str, Callable[..., dict[str, Any]]] = {
    "ids": child_ids,
    "open": child_open,
    "close": child_close,
    "read": child_read,
}


def main() -> None:
    """Run everything, or be one of the processes it starts."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = options_of(parser, what="RESULTS.md and plots")
    core = pin_to_one_core()
    if options.child:
        be_child(*options.child)
        return
    report = measure(core)
    if options.record:
        record(report)
    report.publish()


def be_child(name: str, *args: str) -> None:
    """Do one thing in this fresh process."""
    if name == "fill":
        child_fill(*args)
    else:
        leave(ASIDE[name](*args))


def measure(core: int) -> Report:
    """Run all cases."""
    # Not above: the processes this one starts would load it in vain.
    from benchmarks.display import progress

    with scratch_folder() as scratch:
        report = Report("log", facts(scratch, scale=scale(), pinned_to_core=core))
        if file_system(scratch) in MEMORY_FILE_SYSTEMS:
            report.notes.append("The scratch folder is in memory: fsync costs nothing there.")
        steps = len(setups()) * rounds_of(ROUNDS) + 2 + rounds_of(IDS_ROUNDS) + openings_steps()
        with progress("log", steps=steps) as tick:
            run_cases(report, scratch, tick)
    report.finish()
    return report


def run_cases(report: Report, scratch: Path, tick: Tick) -> None:
    """Fill the report."""
    measure_appends(report, scratch, tick)
    measure_append_cpu(report, scratch, tick)
    measure_ids(report, MODULE, tick)
    Openings(report, scratch, MODULE, tick).run()
    # The names that are compared over time come first.
    report.results.sort(key=lambda result: ORDER.get(result.case, len(ORDER)))


def record(report: Report) -> None:
    """Write this run down."""
    report.record(f"python -m {MODULE} --record")
    cases = {
        setup.case: f"{setup.batch_messages}, {setup.fsync}{'' if setup.dedup else ', no dedup'}"
        for setup in setups()
    }
    report.plot("log-append", "Appending batches to one partition on one core", cases)


if __name__ == "__main__":
    main()
