"""Quotas: how exactly a principal is held to its rate, and what its neighbours notice of it.

    python -m benchmarks.quota              the table, then one line of JSON
    python -m benchmarks.quota --record     also writes RESULTS.md

On one secured node, `greedy` may send 10 MiB/s and sends as fast as it can: batches over a stream,
batches by single calls, messages by HTTP; what is refused is sent again at once. `quiet` publishes
single messages at a steady rate meanwhile, over gRPC and over HTTP. Its latency is compared with
that of the same round without the other.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

from benchmarks.client import Stopwatch, run_client
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest
from benchmarks.harness import Bar, Report, is_smoke, scale
from benchmarks.node.neighbours import GREEDY, QUIET
from benchmarks.node.secured import running
from benchmarks.peers.server import Server
from waterclock.model.units import MIB
from waterclock.security.quotas import UNBOUNDED, Quotas

ROUNDS = 3
RATE_BYTES = 10 * MIB
SECONDS = 30
QUIET_RATE = 200
"""Messages/s."""
WAYS = ("stream", "calls", "http")
QUIET_WAYS = ("grpc", "http")
ACCURACY = 0.05
RISE_MAX = 1.2


def _seconds() -> float:
    return max(0.5, SECONDS * scale())


def alone(way: str) -> Callable[[Server], Stopwatch]:
    """Give a run of the quiet one with nobody beside it."""
    work = {"way": way, "rate": QUIET_RATE, "seconds": _seconds() / 2}
    return lambda server: run_client("benchmarks.node.neighbours:quiet", server, **work)


def beside(way: str, greedy: str) -> Callable[[Server], Stopwatch]:
    """Give a run of the quiet one beside the greedy one; it tells of both."""

    def run(server: Server) -> Stopwatch:
        clients = "benchmarks.node.neighbours"
        with ThreadPoolExecutor(1) as thread:
            other = thread.submit(
                run_client, f"{clients}:greedy", server, way=greedy, seconds=_seconds()
            )
            # Less long: the greedy one is at it from before until after.
            work = {"way": way, "rate": QUIET_RATE, "seconds": _seconds() * 0.6}
            watch = run_client(f"{clients}:quiet", server, **work)
            sent = other.result()
        watch.more["bytes_per_s"] = sent.more["bytes"] / sent.wall_s
        watch.more["refusals_per_s"] = sent.more["refusals"] / sent.wall_s
        return watch

    return run


CONTEST = Contest(
    bench="quota",
    openers={
        "node": partial(
            running,
            kind="tls",
            others={GREEDY: Quotas(bytes_per_s=RATE_BYTES), QUIET: UNBOUNDED},
        ),
    },
    ours=[
        *(Case(f"{way}_alone", "node", alone(way)) for way in QUIET_WAYS),
        *(
            Case(f"{way}_beside_{greedy}", "node", beside(way, greedy))
            for way, greedy in product(QUIET_WAYS, WAYS)
        ),
    ],
    theirs=[],
    rounds=ROUNDS,
)


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put rates, latencies and how these rise into the report."""
    for greedy in WAYS:
        runs = [watch for way in QUIET_WAYS for watch in watches[f"{way}_beside_{greedy}"]]
        off = [abs(watch.more["bytes_per_s"] / RATE_BYTES - 1) for watch in runs]
        refusals = sorted(watch.more["refusals_per_s"] for watch in runs)[len(runs) // 2]
        bar, note = Bar(ACCURACY, is_floor=False), f"{refusals:.0f} refusals/s"
        report.add(f"{greedy}_off", off, "of 10 MiB/s", bar=bar, note=note)
    for way in QUIET_WAYS:
        before = [watch.more["p99"] for watch in watches[f"{way}_alone"]]
        report.add(f"{way}_p99_alone_ms", before, "ms")
        for greedy in WAYS:
            found = [watch.more["p99"] for watch in watches[f"{way}_beside_{greedy}"]]
            report.add(f"{way}_p99_beside_{greedy}_ms", found, "ms")
            rises = [after / alone for after, alone in zip(found, before, strict=True)]
            bar = Bar(RISE_MAX, is_floor=False)
            report.add(f"{way}_p99_rise_{greedy}", rises, "of alone", bar=bar)
            if not is_smoke():
                report.ratios[f"{way}_p99_beside_{greedy}_vs_alone"] = report.results[-1].value


if __name__ == "__main__":
    main()
