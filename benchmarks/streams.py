"""In-memory streams by HTTP: send, receive and wait, beside Nchan.

    python -m benchmarks.streams              the table, then one line of JSON
    python -m benchmarks.streams --record     also writes RESULTS.md and the plot beside it

Requests a second are counted by `wrk`, on 64 connections; messages are JSON of 128 B, 100 streams
unless the case says otherwise, and the last 100 messages of each are kept. In `send_receive` each
message is there when it is asked for; in `poll_send` the poll comes first and waits. Latency is
from the moment a message was meant to be sent to the answer of the poll that gets it. Where
`match` is in the name, ten polls of a stream compete for each message, which Nchan does not know;
where it is `broadcast`, all ten get it, of both servers. A ratio is ours by theirs. The floor is a
Python process that echoes the same requests and does nothing else: `peers/echo.py`. Where `v1` is
in the name, the requests are those of iPubSub's API, which its own server gets too: `per_cpu_s` is
how many of them a second of processor time does, of all threads of a server.
"""

from functools import partial
from statistics import median

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, client, cpu_note
from benchmarks.harness import Bar, Report, Result, is_smoke, scaled
from benchmarks.node.running import running
from benchmarks.peers import echo, ipubsub, nchan
from benchmarks.polling import allow_files, files_allowed
from benchmarks.stream_memory import POLLS, StreamMemory, memory_steps

ROUNDS = 5
SECONDS = 3
RATE = "operations/s"
STREAMS = 100
WAITERS = 10
SENDS_PER_S = 1_000
BROADCASTS_PER_S = 100
"""Each goes to ten, so as many answers a second as where they compete."""
RECEIVE_SECONDS = 2
RECEIVES_PER_S_MAX = 150_000
"""So many messages are there to be received, for each second."""
OPS = ("send", "receive", "send_receive", "poll_send", "send_receive_10k_streams")
V1_OPS = ("send", "send_receive")
FLOOR_OPS = ("send", "receive", "send_receive")
LATENCIES = ("match_100x10", "match_10k_waiters", "broadcast_100x10", "broadcast_10k_waiters")
BARS = {
    "send_receive_ops": Bar(25_000),
    "match_100x10_p99_ms": Bar(5, is_floor=False),
    "match_10k_waiters_p99_ms": Bar(20, is_floor=False),
}
RATIO_BARS = {
    **{f"{name}_vs_floor": Bar(0.75) for name in FLOOR_OPS},
    **{f"{name}_vs_nchan": Bar(0.5) for name in FLOOR_OPS},
    "poll_send_vs_nchan": Bar(0.3),
    **{f"v1_{name}_per_cpu_s_vs_ipubsub": Bar(2.5) for name in V1_OPS},
}
AGREED = (
    "send_receive_ops",
    "match_100x10_p99_ms",
    "match_10k_waiters_p99_ms",
    "bytes_per_waiter",
    "idle_1m_streams_mb",
    "ring_ops",
)
"""The names that are compared over time; all others are extra."""


# Cases


def rate_cases(prefix: str, server: str, module: str) -> list[Case]:
    """Give the cases that count requests."""
    seconds = scaled(SECONDS)
    work = {"streams": STREAMS, "seconds": seconds}
    many = {"streams": scaled(10_000, least=STREAMS), "seconds": seconds}
    taken_seconds = scaled(RECEIVE_SECONDS)
    there = 2 * STREAMS if is_smoke() else taken_seconds * RECEIVES_PER_S_MAX
    taken = {"streams": STREAMS, "seconds": taken_seconds, "messages": there}
    return [
        Case(f"{prefix}send", server, client(f"{module}:send", **work)),
        Case(f"{prefix}receive", server, client(f"{module}:receive", **taken)),
        Case(f"{prefix}send_receive", server, client(f"{module}:send_receive", **work)),
        Case(f"{prefix}poll_send", server, client(f"{module}:poll_send", **work)),
        Case(f"{prefix}send_receive_10k_streams", server, client(f"{module}:send_receive", **many)),
    ]


def v1_cases(prefix: str, server: str) -> list[Case]:
    """Give the cases of iPubSub's API."""
    work = {"streams": STREAMS, "seconds": scaled(SECONDS)}
    return [
        Case(f"{prefix}v1_{name}", server, client(f"peers.ipubsub:{name}", **work))
        for name in V1_OPS
    ]


def floor_cases() -> list[Case]:
    """Give the cases of the echo, which sends nobody anything: nothing waits there."""
    work = {"streams": STREAMS, "seconds": scaled(SECONDS)}
    return [
        Case(f"floor_{name}", "floor", client(f"peers.echo:{name}", **work)) for name in FLOOR_OPS
    ]


def waiting_case(name: str, server: str, function: str, *, streams: int, rate: int) -> Case:
    """Give a case where polls wait."""
    messages = scaled(rate * SECONDS, least=50)
    setting = {"streams": streams, "waiters": WAITERS, "rate": rate, "messages": messages}
    return Case(name, server, client(function, **setting))


def waiting_cases(prefix: str, server: str, module: str, *, can_match: bool) -> list[Case]:
    """Give the cases where polls wait, few and many."""
    cases = []
    for name, streams in {
        "100x10": STREAMS,
        "10k_waiters": scaled(POLLS // WAITERS, least=5),
    }.items():
        if can_match:
            work = {"streams": streams, "rate": SENDS_PER_S}
            cases.append(waiting_case(f"match_{name}", server, f"{module}:matching", **work))
        work = {"streams": streams, "rate": BROADCASTS_PER_S}
        full = f"{prefix}broadcast_{name}"
        cases.append(waiting_case(full, server, f"{module}:broadcast", **work))
    return cases


CONTEST = Contest(
    bench="streams",
    openers={
        "node": partial(running, is_http=True),
        "nchan": nchan.running,
        "ipubsub": ipubsub.running,
        "floor": echo.running,
    },
    ours=[
        *rate_cases("", "node", "node.streaming"),
        *waiting_cases("", "node", "node.streaming", can_match=True),
        *v1_cases("", "node"),
    ],
    theirs=[
        *rate_cases("nchan_", "nchan", "peers.nchan"),
        *waiting_cases("nchan_", "nchan", "peers.nchan", can_match=False),
        *floor_cases(),
        *v1_cases("ipubsub_", "ipubsub"),
    ],
    rounds=ROUNDS,
)
PLOT = {
    "send_ops": "Waterclock, send",
    "nchan_send_ops": "Nchan, publish",
    "receive_ops": "Waterclock, receive",
    "nchan_receive_ops": "Nchan, receive",
    "send_receive_ops": "Waterclock, both in turn",
    "nchan_send_receive_ops": "Nchan, both in turn",
}


def main() -> None:
    """Run everything."""
    # The servers inherit it.
    allow_files(POLLS)
    title = "Requests to in-memory streams"
    plots = {"streams": (title, PLOT)}
    steps = memory_steps()
    run_bench(CONTEST, __doc__, finish, plots=plots, then=StreamMemory, steps=steps)


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    results_of = {"": report.results, "nchan_": report.peers, "floor_": report.peers}
    for prefix, results in results_of.items():
        for name in OPS:
            if found := watches.get(f"{prefix}{name}"):
                case, rates = f"{prefix}{name}_ops", [watch.rate for watch in found]
                results.append(Result(case, rates, RATE, BARS.get(case), rate_note(found)))
        for name in LATENCIES:
            if found := watches.get(f"{prefix}{name}"):
                results += latencies(f"{prefix}{name}", found)
    for prefix, results in (("", report.results), ("ipubsub_", report.peers)):
        for name in V1_OPS:
            if found := watches.get(f"{prefix}v1_{name}"):
                results += by_processor(f"{prefix}v1_{name}", found)
    # The names that are compared over time come first.
    order = {name: number for number, name in enumerate(AGREED)}
    report.results.sort(key=lambda result: order.get(result.case, len(order)))
    compare(report)
    if files_allowed() < POLLS:
        report.notes.append(f"Only {files_allowed():,} files may be open: too few for the polls.")
    if POLLS < 10_000:
        report.notes.append(
            f"10k waiters are {POLLS:,}: the node takes no more than 10,000 connections."
        )


def by_processor(name: str, watches: list[Stopwatch]) -> list[Result]:
    """Give the rate of one case, by the clock and by what the server's processors did for it."""
    rates = [watch.rate for watch in watches]
    # Of a handful of requests the kernel may have seen nothing.
    costs_us = [max(watch.server_cpu_us, 0.001) for watch in watches]
    note = f"{median(costs_us):.1f} us of the server an operation"
    return [
        Result(f"{name}_ops", rates, RATE, note=rate_note(watches)),
        Result(f"{name}_per_cpu_s", [1e6 / us for us in costs_us], "operations/CPU s", note=note),
    ]


def rate_note(watches: list[Stopwatch]) -> str:
    """Tell the processor time of a million requests, and how long one took."""
    if "p99_us" not in watches[0].more:
        return cpu_note(watches)
    p50, p99 = (median(w.more[name] for w in watches) / 1e3 for name in ("p50_us", "p99_us"))
    return f"{cpu_note(watches)}; each p50 {p50:.2f} p99 {p99:.2f} ms"


def latencies(name: str, watches: list[Stopwatch]) -> list[Result]:
    """Give the percentiles of one case."""
    results = []
    for percentile in ("p50", "p99"):
        samples = [watch.more["delivery_ms"][percentile] for watch in watches]
        cpu = median(watch.server_cpu_us for watch in watches)
        note = f"server CPU {cpu:.0f} us an answer" if percentile == "p50" else ""
        case = f"{name}_{percentile}_ms"
        results.append(Result(case, samples, "ms", BARS.get(case), note))
    return results


def compare(report: Report) -> None:
    """Put the ratios of what both have done into the report."""
    values = {result.case: result.value for result in report.results}
    for theirs in report.peers:
        peer, _, name = theirs.case.partition("_")
        if name in values:
            label = name.removesuffix("_ops").removesuffix("_ms")
            report.ratios[f"{label}_vs_{peer}"] = values[name] / theirs.value
    report.ratio_bars |= RATIO_BARS


if __name__ == "__main__":
    main()
