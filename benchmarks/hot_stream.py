"""One busy stream at one node, and split over three: what the busiest node spends on a request.

    python -m benchmarks.hot_stream              the table, then one line of JSON
    python -m benchmarks.hot_stream --record     also writes RESULTS.md

Nodes are processes that share this machine's cores, so requests a second say little of what three
machines would do. Processor time does: if each node had its own core, the busiest would bound the
rate, at one second of it for so many requests. `gain` is that rate over three nodes by that of one.
`everywhere`: clients of each node send and receive in turn. `apart`: all senders are at one node
and all receivers at another, and the owner is the third, so each message moves between nodes; the
same requests at one node are beside it. Clients are `wrk`, on 64 connections each.
"""

from collections.abc import Sequence
from statistics import median

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, client
from benchmarks.harness import Bar, Report, scaled
from benchmarks.node.hot_streaming import ALONE, SHARING, three_and_one

ROUNDS = 3
SECONDS = 4
RATE = "operations/s"
GAIN = Bar(2.0)
KINDS = ("everywhere", "apart")

CONTEST = Contest(
    bench="hot_stream",
    openers={"node": three_and_one},
    ours=[
        Case(
            f"{nodes}_{kind}",
            "node",
            client(f"node.hot_streaming:{kind}", where=where, seconds=scaled(SECONDS)),
        )
        for kind in KINDS
        for nodes, where in (("one", ALONE), ("three", SHARING))
    ],
    theirs=[],
    rounds=ROUNDS,
)


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put processor times, and the rates they allow, into the report."""
    for kind in KINDS:
        one, three_ = (busiest_us(watches[f"{nodes}_{kind}"]) for nodes in ("one", "three"))
        for nodes, busiest in (("one", one), ("three", three_)):
            found = watches[f"{nodes}_{kind}"]
            each = [median(watch.more["cpu_us"][at] for watch in found) for at in _nodes(found)]
            note = f"CPU us a request, owner first: {', '.join(f'{us:.1f}' for us in each)}"
            report.add(f"{nodes}_{kind}_ops_per_core", [1e6 / us for us in busiest], RATE)
            report.add(f"{nodes}_{kind}_ops_here", [w.rate for w in found], RATE, note=note)
        gains = [alone / shared for alone, shared in zip(one, three_, strict=True)]
        bar = GAIN if kind == "everywhere" else None
        report.add(f"{kind}_gain", gains, "times one node's rate", bar=bar)


def busiest_us(watches: Sequence[Stopwatch]) -> list[float]:
    """Give the processor time of a request at the node that spends most."""
    return [max(watch.more["cpu_us"]) for watch in watches]


def _nodes(watches: Sequence[Stopwatch]) -> range:
    return range(len(watches[0].more["cpu_us"]))


if __name__ == "__main__":
    main()
