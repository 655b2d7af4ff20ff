"""How long a single publish takes at a steady rate, beside Redis, JetStream and Kafka.

    python -m benchmarks.latency              the table, then one line of JSON
    python -m benchmarks.latency --record     also writes RESULTS.md and the plot beside it

One process publishes messages of 128 B, evenly spaced, and consumes them in a group. Each is timed
from the moment it was meant to be sent to its acknowledgement, and to its delivery; what leaves
late because the client was busy counts as late. Everyone acknowledges after an fsync, unless the
name says `nosync`. Ours go by the native protocol, unless the name says `grpc`. Those of
`publish_one` go one at a time, each when the one before is acknowledged, by each of our three ways
in; that of HTTP is on one connection that stays. A ratio is ours by theirs: below 1 we are faster.
"""

from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, client
from benchmarks.harness import Bar, Report, Result, scaled
from benchmarks.node.running import running
from benchmarks.peers import kafka, nats, redis
from benchmarks.peers.pacing import PERCENTILES

ROUNDS = 3
SECONDS = 4
MESSAGES_LEAST = 50
RATES = {"100": 100, "1k": 1_000, "5k": 5_000}
KINDS = {"publish_ack": "ack_ms", "publish_delivery": "delivery_ms"}
RATIO_BARS = {"publish_ack_1k_p50_vs_jetstream": Bar(1.3, is_floor=False)}
ENOUGH_P99_MS, P99_VS_JETSTREAM = 2, 1.2
"""The 99th percentile may be so much, or so many times JetStream's, whichever is more."""
AGREED = ("publish_ack_1k_p50_ms", "publish_ack_1k_p99_ms", "publish_delivery_1k_p99_ms")
"""The names that are compared over time; all others are extra."""
RATIO = "publish_ack_1k_p99"
RATIOS = ("publish_ack_1k_p50", RATIO)
ONES = 2_000
WAYS = ("http", "grpc", "native")


def cases(prefix: str, server: str, function: str, **more: object) -> list[Case]:
    """Give the cases of a server, one for each rate."""
    found = []
    for name, rate in RATES.items():
        messages = scaled(rate * SECONDS, least=MESSAGES_LEAST)
        run = client(function, rate=rate, messages=messages, **more)
        found.append(Case(f"{prefix}{name}", server, run))
    return found


def one_cases() -> list[Case]:
    """Give the cases of our node that publish one message at a time."""
    work = {"messages": scaled(ONES, least=MESSAGES_LEAST)}
    return [
        Case(f"one_{way}", "node", client("node.timing:one_at_a_time", way=way, **work))
        for way in WAYS
    ]


CONTEST = Contest(
    bench="latency",
    openers={
        "node": running,
        "redis": redis.running,
        "jetstream": nats.running,
        "jetstream_nosync": partial(nats.running, is_durable=False),
        "kafka": partial(kafka.running, warm_up_messages=100_000),
    },
    ours=[
        *cases("", "node", "node.timing:latency"),
        *cases("grpc_", "node", "node.timing:latency", is_native=False),
        *one_cases(),
    ],
    theirs=[
        *cases("redis_", "redis", "peers.redis:latency"),
        *cases("jetstream_", "jetstream", "peers.nats:latency"),
        *cases("jetstream_nosync_", "jetstream_nosync", "peers.nats:latency"),
        *cases("kafka_", "kafka", "peers.kafka:latency", topic=kafka.DURABLE),
        *cases("kafka_nosync_", "kafka", "peers.kafka:latency", topic=kafka.DEFAULT),
    ],
    rounds=ROUNDS,
)
PLOT = {
    f"{peer}{RATIO}_ms": label
    for peer, label in {
        "": "Waterclock",
        "redis_": "Redis",
        "jetstream_": "JetStream",
        "kafka_": "Kafka",
        "jetstream_nosync_": "JetStream, no fsync",
        "kafka_nosync_": "Kafka, no fsync",
    }.items()
}


def main() -> None:
    """Run everything."""
    title = "Publish to acknowledgement at 1000 messages/s, 99th percentile"
    run_bench(CONTEST, __doc__, finish, plots={"latency": (title, PLOT)})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    for case in CONTEST.ours:
        prefix, _, rate = case.name.rpartition("_")
        if rate in RATES:
            found = results(f"{prefix}_" if prefix else "", rate, watches[case.name])
        else:
            found = percentiles_of(f"publish_{case.name}", "ack_ms", watches[case.name])
        report.results += found
    # The names that are compared over time come first.
    report.results.sort(key=lambda result: result.case not in AGREED)
    for case in CONTEST.theirs:
        if case.name in watches:
            peer, _, rate = case.name.rpartition("_")
            report.peers += results(f"{peer}_", rate, watches[case.name])
    values = {result.case: result.value for result in (*report.results, *report.peers)}
    for name in RATIOS:
        for peer in ("redis", "jetstream", "kafka", "jetstream_nosync", "kafka_nosync"):
            if (theirs := values.get(f"{peer}_{name}_ms")) is not None:
                report.ratios[f"{name}_vs_{peer}"] = values[f"{name}_ms"] / theirs
    report.ratio_bars |= RATIO_BARS
    judge_p99(report, values.get(f"jetstream_{RATIO}_ms", 0))


def judge_p99(report: Report, jetstream_ms: float) -> None:
    """Give the 99th percentile its bar, which depends on JetStream's."""
    bar = Bar(max(ENOUGH_P99_MS, P99_VS_JETSTREAM * jetstream_ms), is_floor=False)
    case = f"{RATIO}_ms"
    report.results[:] = [replace(r, bar=bar) if r.case == case else r for r in report.results]


def results(prefix: str, rate: str, watches: list[Stopwatch]) -> list[Result]:
    """Give the percentiles of one server at one rate."""
    found = []
    for kind, label in KINDS.items():
        found += percentiles_of(f"{prefix}{kind}_{rate}", label, watches)
    return found


def percentiles_of(name: str, label: str, watches: list[Stopwatch]) -> list[Result]:
    """Give the percentiles of what was timed."""
    cpu = median(watch.server_cpu_us for watch in watches)
    found = []
    for percentile in PERCENTILES:
        samples = [watch.more[label][percentile] for watch in watches]
        note = f"server CPU {cpu:.0f} us a message" if percentile == "p50" else ""
        found.append(Result(f"{name}_{percentile}_ms", samples, "ms", note=note))
    return found


if __name__ == "__main__":
    main()
