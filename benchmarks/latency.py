"""How long a single publish takes at a steady rate, beside Redis, JetStream and Kafka.

    python -m benchmarks.latency              the table, then one line of JSON
    python -m benchmarks.latency --record     also writes RESULTS.md and the plot beside it

One process publishes messages of 128 B, evenly spaced, and consumes them in a group. Each is timed
from the moment it was meant to be sent to its acknowledgement, and to its delivery; what leaves
late because the client was busy counts as late. Everyone acknowledges after an fsync, unless the
name says `nosync`. Ours go by the native protocol, unless the name says `grpc`. A ratio is ours by
theirs: below 1 we are faster.
"""

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
BARS = {"publish_ack_1k_p99_ms": Bar(10, is_floor=False)}
AGREED = ("publish_ack_1k_p50_ms", "publish_ack_1k_p99_ms", "publish_delivery_1k_p99_ms")
"""The names that are compared over time; all others are extra."""
RATIO = "publish_ack_1k_p99"


def cases(prefix: str, server: str, function: str, **more: object) -> list[Case]:
    """Give the cases of a server, one for each rate."""
    found = []
    for name, rate in RATES.items():
        messages = scaled(rate * SECONDS, least=MESSAGES_LEAST)
        run = client(function, rate=rate, messages=messages, **more)
        found.append(Case(f"{prefix}{name}", server, run))
    return found


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
        report.results += results(f"{prefix}_" if prefix else "", rate, watches[case.name])
    # The names that are compared over time come first.
    report.results.sort(key=lambda result: result.case not in AGREED)
    for case in CONTEST.theirs:
        if case.name in watches:
            peer, _, rate = case.name.rpartition("_")
            report.peers += results(f"{peer}_", rate, watches[case.name])
    values = {result.case: result.value for result in (*report.results, *report.peers)}
    for peer in ("redis", "jetstream", "kafka", "jetstream_nosync", "kafka_nosync"):
        if (theirs := values.get(f"{peer}_{RATIO}_ms")) is not None:
            report.ratios[f"{RATIO}_vs_{peer}"] = values[f"{RATIO}_ms"] / theirs


def results(prefix: str, rate: str, watches: list[Stopwatch]) -> list[Result]:
    """Give the percentiles of one server at one rate."""
    cpu = median(watch.server_cpu_us for watch in watches)
    found = []
    for kind, label in KINDS.items():
        for percentile in PERCENTILES:
            case = f"{kind}_{rate}_{percentile}_ms"
            samples = [watch.more[label][percentile] for watch in watches]
            bar = None if prefix else BARS.get(case)
            note = f"server CPU {cpu:.0f} us a message" if percentile == "p50" else ""
            found.append(Result(f"{prefix}{case}", samples, "ms", bar, note))
    return found


if __name__ == "__main__":
    main()
