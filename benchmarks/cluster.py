"""Streams of another node: what it costs to ask the wrong one.

    python -m benchmarks.cluster              the table, then one line of JSON
    python -m benchmarks.cluster --record     also writes RESULTS.md

Two nodes, as processes; all streams belong to `owner`. The same requests go to it and to `front`,
which asks it over the peer link. Latency is of one request at a time, one to the owner and one to
the front in turn; `forward_added_p50_ms` is what the way over the front adds. Requests a second are
counted by `wrk`, on 64 connections. A poll is counted on top of its connection, on either node.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.client import Stopwatch, run_client
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, client
from benchmarks.harness import Bar, Report, Tick, is_smoke, rounds_of, scaled
from benchmarks.node.clustering import pair
from benchmarks.stream_memory import POLLS

ROUNDS = 3
SECONDS = 3
STREAMS = 100
REQUESTS = 3_000
RATE = "operations/s"
ADDED_BAR = Bar(1.0, is_floor=False)
POLL_BAR = Bar(1_024, is_floor=False)

_WORK = {"streams": STREAMS, "seconds": scaled(SECONDS)}
CONTEST = Contest(
    bench="cluster",
    openers={"node": pair},
    ours=[
        Case(
            "latency",
            "node",
            client("node.clustering:latency", requests=scaled(REQUESTS, least=20)),
        ),
        Case("owner_send_receive", "node", client("node.clustering:at_owner", **_WORK)),
        Case("front_send_receive", "node", client("node.clustering:at_front", **_WORK)),
    ],
    theirs=[],
    rounds=ROUNDS,
)


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={}, then=ForwardedPolls, steps=rounds_of(ROUNDS))


class ForwardedPolls:
    """What polls take that wait at the wrong node; each round has fresh nodes."""

    def __init__(self, report: Report, scratch: Path, tick: Tick) -> None:
        self._report = report
        self._scratch = scratch
        self._tick = tick

    def run(self) -> None:
        """Measure them, on both nodes."""
        polls, watches = scaled(POLLS, least=50), []
        for number in range(rounds_of(ROUNDS)):
            self._tick("waiters")
            with pair(self._scratch / f"waiters-{number}") as server:
                work = {"polls": polls}
                watches.append(run_client("benchmarks.node.clustering:waiters", server, **work))
        note = f"RSS, {polls:,} polls less as many quiet connections"
        for node in ("front", "owner"):
            case, grown = f"{node}_bytes_per_forwarded_poll", _of(watches, f"{node}_bytes")
            self._report.add(case, grown, "B", bar=POLL_BAR, note=note)


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put latencies, rates and memory into the report."""
    both = []
    for what in ("send", "receive"):
        direct = _of(watches["latency"], f"owner_{what}")
        forwarded = _of(watches["latency"], f"front_{what}")
        added = [one - other for one, other in zip(forwarded, direct, strict=True)]
        report.add(f"{what}_p50_owner_ms", direct, "ms")
        report.add(f"{what}_p50_front_ms", forwarded, "ms")
        both.append(added)
        report.add(f"{what}_p50_added_ms", added, "ms", bar=ADDED_BAR)
    worse = [max(each) for each in zip(*both, strict=True)]
    report.add("forward_added_p50_ms", worse, "ms", bar=ADDED_BAR, note="the worse of the two")
    for where in ("owner", "front"):
        found = watches[f"{where}_send_receive"]
        cpu = [median(_of(found, f"{node}_cpu_us")) for node in ("front", "owner")]
        note = f"CPU us a request: front {cpu[0]:.0f}, owner {cpu[1]:.0f}"
        report.add(f"{where}_send_receive_ops", [each.rate for each in found], RATE, note=note)
    if is_smoke():
        return
    report.ratios["front_vs_owner"] = median(
        front.rate / owner.rate
        for front, owner in zip(
            watches["front_send_receive"], watches["owner_send_receive"], strict=True
        )
    )


def _of(watches: Sequence[Stopwatch], what: str) -> list[float]:
    return [float(watch.more[what]) for watch in watches]


if __name__ == "__main__":
    main()
