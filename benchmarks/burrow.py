"""Parallel consumption with `waterclock.burrow`, beside pyrallel-consumer, FastStream and a loop.

    python -m benchmarks.burrow              the table, then one line of JSON
    python -m benchmarks.burrow --record     also writes RESULTS.md and the plot beside it

Messages are in Kafka beforehand; all read them from one broker on this machine, in one process
each. The pool runs on uvloop, orders by key unless the name says `none`, and commits as by default,
every 1,000 messages. `efficiency` is the rate by what the workers could do at most, workers ÷ work
time, with 100 workers, and with 1,000 where it says `1000w`. The work takes its time exactly on an
idle loop (`burrow_work.py`); `bare` is the same work on the same loop with neither pool nor
messages, so what any pool could reach. Beside it stands the share of their time the workers spent
in the function, however long it took.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.burrow_stage import (
    LOADS,
    PEER_LOAD,
    STUCK_BAR,
    THREADS_LOAD,
    Load,
    Stage,
    our_cases,
    their_cases,
)
from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import RATE, Case, Contest, cpu_note
from benchmarks.harness import Bar, Report, Result, shown

ROUNDS = 3
SHARE = "of workers ÷ work time"
BEYOND_BAR = Bar(0.2)
"""For a load that no Python process does: what a message costs is all that counts there."""
BARE_BAR = Bar(0.95)
"""Of what the bare loop reaches, for all other loads."""
RATIO_BARS = {
    "noop_vs_pyrallel": Bar(5),
    "noop_key_vs_none": Bar(0.5),
    **{f"efficiency_{load.name}_vs_bare": BARE_BAR for load in LOADS if load.is_possible},
}

STAGE = Stage()
CONTEST = Contest(
    bench="burrow",
    openers={
        "node": STAGE.node,
        "loop": STAGE.loop,
        "pyrallel": STAGE.pyrallel,
        "faststream": STAGE.faststream,
    },
    ours=our_cases(),
    theirs=their_cases(),
    rounds=ROUNDS,
)
PLOT = {
    "noop_none": "waterclock.burrow, unordered",
    "noop_key": "waterclock.burrow, by key",
    "loop_noop": "a plain loop",
    "pyrallel_noop_none": "pyrallel-consumer, unordered",
    "pyrallel_noop_key": "pyrallel-consumer, by key",
    "faststream_ackfirst_noop": "FastStream, commits before",
    "faststream_noop": "FastStream",
}
LOAD_OF: Mapping[str, Load] = {
    **{f"efficiency_{load.name}": load for load in LOADS},
    **{f"bare_{load.name}": load for load in LOADS},
    f"threads_{THREADS_LOAD.name}": THREADS_LOAD,
    f"pyrallel_efficiency_{PEER_LOAD.name}": PEER_LOAD,
}


def main() -> None:
    """Run everything."""
    plots = {"burrow": ("Kafka messages through a function that does nothing", PLOT)}
    run_bench(CONTEST, __doc__, finish, plots=plots)


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    report.machine["broker"] = STAGE.broker().version
    report.notes += STAGE.notes
    for case in (*CONTEST.ours, *CONTEST.theirs):
        if case.name in watches:
            results = report.results if case in CONTEST.ours else report.peers
            results.append(_result(case, watches[case.name]))
    compare(report)


def _result(case: Case, watches: Sequence[Stopwatch]) -> Result:
    if case.name == "stuck_mb":
        samples = [watch.more["grown_mb"] for watch in watches]
        count = watches[0].messages
        note = f"memory grown from 10 % to 100 % of {count:,} behind a message that never ends"
        return Result(case.name, samples, "MB", STUCK_BAR, note)
    rates = [watch.rate for watch in watches]
    load = LOAD_OF.get(case.name)
    if load is None:
        note = "; ".join(filter(None, [case.note, cpu_note(watches)]))
        return Result(case.name, rates, RATE, case.bar, note)
    work_s = median(watch.more["work_s"] for watch in watches)
    inside = median(watch.rate * watch.more["work_s"] for watch in watches) / load.workers
    note = f"{median(rates):,.0f} a second; {inside:.0%} of their time in the function, "
    note += f"{work_s * 1_000:.4g} ms each; {cpu_note(watches)}"
    is_judged = case.name.startswith("efficiency") and not load.is_possible
    bar = BEYOND_BAR if is_judged else None
    return Result(case.name, [rate / load.ideal for rate in rates], SHARE, bar, note)


def compare(report: Report) -> None:
    """Put the ratios into the report, and what they must be."""
    values = {result.case: result.value for result in (*report.results, *report.peers)}
    ratios = [
        values[f"noop_{order}"] / values[f"pyrallel_noop_{order}"]
        for order in ("none", "key")
        if f"pyrallel_noop_{order}" in values
    ]
    if ratios:
        # Of the two orders, the one that is worse for us.
        report.ratios["noop_vs_pyrallel"] = min(ratios)
        report.ratios["noop_key_vs_none"] = values["noop_key"] / values["noop_none"]
    for name in ("loop_noop", "faststream_noop", "faststream_ackfirst_noop"):
        if name in values:
            report.ratios[f"noop_vs_{name.removesuffix('_noop')}"] = (
                values["noop_key"] / values[name]
            )
    theirs = f"pyrallel_efficiency_{PEER_LOAD.name}"
    if theirs in values:
        ours = values[f"efficiency_{PEER_LOAD.name}"]
        report.ratios[f"efficiency_{PEER_LOAD.name}_vs_pyrallel"] = ours / values[theirs]
    for load in LOADS:
        pool, bare = f"efficiency_{load.name}", f"bare_{load.name}"
        if pool in values and bare in values:
            report.ratios[f"{pool}_vs_bare"] = values[pool] / values[bare]
    report.ratio_bars |= RATIO_BARS
    beyond = [load for load in LOADS if not load.is_possible]
    for load in beyond:
        report.notes.append(
            f"{load.workers:,} workers on {load.ms} ms would be {shown(load.ideal)} messages a "
            f"second, which no Python process does: the bar is lower; see bare_{load.name}."
        )


if __name__ == "__main__":
    main()
