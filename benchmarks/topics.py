"""Topics that three nodes of this machine keep, beside JetStream R3 and Kafka with three brokers.

    python -m benchmarks.topics              the table, then one line of JSON
    python -m benchmarks.topics --record     also writes RESULTS.md

Everyone keeps one partition on three processes, which share this machine's disk, and acknowledges
when a majority has flushed: we with etcd beside us and `acks=quorum`; JetStream with a stream of
three replicas, `sync_interval: always` and atomic batches; Kafka with `acks=all`,
`min.insync.replicas=2` and `flush.messages=1`. A client is one process with several connections to
the leader, each with `WINDOW` batches unanswered; values have 128 B. Latency is of single messages
at a steady rate, each timed from when it was meant to be sent. Our batches go over gRPC, our single
messages by the native protocol.
"""

from dataclasses import replace
from functools import partial

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, add_rates, client, compare
from benchmarks.harness import Bar, Report, scaled, whole_batches
from benchmarks.latency import results
from benchmarks.node import replicating
from benchmarks.peers import kafka, nats
from benchmarks.peers.lineup import NODES
from benchmarks.peers.server import Server

ROUNDS = 5
WINDOW = 8
BATCH = 1_000
MESSAGES = 300_000
CONNECTIONS = {"": 1, "_4c": 4}
RATE, SECONDS = 1_000, 4
LATENCY = "1k"
ACK_P99_BAR = Bar(10, is_floor=False)
RATIO_BARS = {
    f"publish_rf3{suffix}_vs_{peer}": bar
    for suffix in CONNECTIONS
    for peer, bar in (("jetstream", Bar(2)), ("kafka", Bar(1)))
}
OURS = NODES


def rate_cases(server: str, function: str, **more: object) -> list[Case]:
    """Give the cases of a server that publishes as much as it takes."""
    found = []
    for suffix, connections in CONNECTIONS.items():
        work = {"messages": whole_batches(MESSAGES), "window": WINDOW, "connections": connections}
        run = client(function, **work, **more)
        found.append(Case(f"{prefix_of(server)}publish_rf3_{BATCH}{suffix}", server, run))
    return found


def latency_case(server: str, function: str, **more: object) -> Case:
    """Give the case of a server that is asked at a steady rate."""
    messages = scaled(RATE * SECONDS, least=50)
    run = client(function, rate=RATE, messages=messages, **more)
    return Case(f"{prefix_of(server)}{LATENCY}", server, run)


def prefix_of(server: str) -> str:
    """Give what names of cases begin with; ours with nothing."""
    return "" if server == OURS else f"{server}_"


def on_fresh_stream(case: Case) -> Case:
    """Give a case of JetStream that begins with an empty stream."""

    def begin(server: Server) -> Stopwatch:
        nats.create_replicated_stream(server.port)
        return case.run(server)

    return replace(case, run=begin)


RATES = {
    OURS: rate_cases(OURS, "node.replicating:batches", batch=BATCH),
    "jetstream": [
        on_fresh_stream(case) for case in rate_cases("jetstream", "peers.nats:publish_atomic")
    ],
    "kafka": rate_cases("kafka", "peers.kafka:publish", topic=kafka.DURABLE),
}
LATENCIES = {
    OURS: latency_case(OURS, "node.replicating:latency"),
    "jetstream": on_fresh_stream(latency_case("jetstream", "peers.nats:latency")),
    "kafka": latency_case("kafka", "peers.kafka:latency", topic=kafka.DURABLE, window=2),
}
CONTEST = Contest(
    bench="topics",
    openers={
        OURS: replicating.running,
        "jetstream": nats.running_replicated,
        "kafka": partial(kafka.running_replicated, warm_up_messages=whole_batches(MESSAGES)),
    },
    ours=[*RATES[OURS], LATENCIES[OURS]],
    theirs=[case for peer in ("jetstream", "kafka") for case in (*RATES[peer], LATENCIES[peer])],
    rounds=ROUNDS,
)


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    rates = {name: watches[name] for name in watches if "publish_rf3" in name}
    add_rates(report, CONTEST, rates)
    for server, case in LATENCIES.items():
        if case.name in watches:
            found = results(prefix_of(server), LATENCY, watches[case.name])
            (report.results if server == OURS else report.peers).extend(found)
    for suffix in CONNECTIONS:
        rate, name = f"publish_rf3_{BATCH}{suffix}", f"publish_rf3{suffix}"
        theirs = {peer: f"{peer}_{rate}" for peer in ("jetstream", "kafka")}
        compare(report, rate, theirs, name=name)
    ack = f"publish_ack_{LATENCY}_p99_ms"
    compare(report, ack, {peer: f"{peer}_{ack}" for peer in ("jetstream", "kafka")})
    report.results[:] = [
        replace(each, bar=ACK_P99_BAR) if each.case == ack else each for each in report.results
    ]
    report.ratio_bars |= RATIO_BARS


if __name__ == "__main__":
    main()
