"""One node as one process, and as two behind one address: what the busiest spends on a message.

    python -m benchmarks.processes              the table, then one line of JSON
    python -m benchmarks.processes --record     also writes RESULTS.md

Clients and processes share this machine's cores, so messages a second say little of what a machine
with a core for each process would do. Processor time does: the busiest process would bound the
rate, at one second of it for so many messages. `gain` is that rate of two processes by that of one.
`streams`: send and receive in turn, of 100 streams, by `wrk` on 64 connections; half of the
requests come to the process that does not own their stream, which asks the other. `own_streams`:
each connection has one stream, and goes to the process that owns it. `hot_stream`: the same of one
stream, which is split, so each process answers those that ask it. `publish`: batches of 1,000
messages to a topic of 8 partitions, on 32 connections of gRPC; half of them come to the process
that does not lead their partition.
"""

from statistics import median

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, client
from benchmarks.harness import Bar, Report, scaled, whole_batches
from benchmarks.load import CONNECTIONS
from benchmarks.node.processing import ALONE, SHARING, two_and_one

ROUNDS = 3
SECONDS = 4
STREAMS = 100
MESSAGES = 2_000_000
SPLIT_S = 8
"""Until a busy stream is split."""
RATES = {
    "streams": "operations/s",
    "own_streams": "operations/s",
    "hot_stream": "operations/s",
    "publish": "messages/s",
}
GAIN = Bar(1.6)
_WORK = {
    "streams": ("streams", {"streams": STREAMS, "seconds": scaled(SECONDS)}),
    "own_streams": (
        "streams",
        {"streams": CONNECTIONS, "seconds": scaled(SECONDS), "is_apart": True},
    ),
    "hot_stream": ("streams", {"streams": 1, "seconds": scaled(SECONDS), "before_s": SPLIT_S}),
    "publish": (
        "batches",
        {
            "batch": 1_000,
            "messages": whole_batches(MESSAGES),
            "window": 4,
            "partitions": 8,
            "connections": 32,
        },
    ),
}

CONTEST = Contest(
    bench="processes",
    openers={"node": two_and_one},
    ours=[
        Case(f"{processes}_{kind}", "node", client(f"node.processing:{how}", where=where, **work))
        for kind, (how, work) in _WORK.items()
        for processes, where in (("one", ALONE), ("two", SHARING))
    ],
    theirs=[],
    rounds=ROUNDS,
)


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put processor times, and the rates they allow, into the report."""
    for kind, unit in RATES.items():
        busiest = {}
        for processes in ("one", "two"):
            found = watches[f"{processes}_{kind}"]
            busiest[processes] = [max(watch.more["cpu_us"]) for watch in found]
            places = range(len(found[0].more["cpu_us"]))
            each = [median(watch.more["cpu_us"][at] for watch in found) for at in places]
            note = f"CPU us of each: {', '.join(f'{us:.2f}' for us in each)}"
            rates = [1e6 / us for us in busiest[processes]]
            report.add(f"{processes}_{kind}_per_core", rates, unit)
            report.add(f"{processes}_{kind}_here", [w.rate for w in found], unit, note=note)
        pairs = zip(busiest["one"], busiest["two"], strict=True)
        gains = [alone / shared for alone, shared in pairs]
        report.add(f"{kind}_gain", gains, "times one process's rate", bar=GAIN)


if __name__ == "__main__":
    main()
