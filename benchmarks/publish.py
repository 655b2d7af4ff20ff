"""Durable publishing over the network, beside Redis, JetStream, Kafka and RabbitMQ.

    python -m benchmarks.publish              the table, then one line of JSON
    python -m benchmarks.publish --record     also writes RESULTS.md and the plot beside it

Everyone acknowledges after an fsync that covers the message, unless the name says `nosync`. We
recognise repeats by message id meanwhile, which the peers are spared. All clients are one process
that keeps `WINDOW` batches unanswered; values have 128 B. Ours go by the native protocol, unless
the name says `grpc`.
"""

from functools import partial

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, add_rates, client, compare
from benchmarks.harness import Bar, Report, whole_batches
from benchmarks.node.running import running
from benchmarks.peers import kafka, nats, rabbitmq, redis
from benchmarks.peers.server import Server

ROUNDS = 5
WINDOW = 8
"""Batches unanswered at a time, ours and theirs."""
BATCH = 1_000
"""Of all but `batch_4000`."""
CALLERS = 64
REDIS_CLIENTS = 50
MESSAGES = 1_000_000
SINGLES = 100_000
PARTITIONS = {"": 1, "_8p": 8}
RATIO_BARS = {
    "single_64_callers_vs_redis": Bar(1.3),
    "batch_1000_vs_redis": Bar(3),
    "batch_1000_vs_kafka": Bar(2),
}
"""Against those that fsync as we do; Redis on eight connections."""


# Cases


def our_cases() -> list[Case]:
    """Give the cases of our node."""
    cases = []
    for suffix, partitions in PARTITIONS.items():
        for batch in (1_000, 4_000):
            messages = whole_batches(MESSAGES, batch=batch)
            work = {"batch": batch, "messages": messages, "partitions": partitions}
            run = client("node.publishing:batches", **work, window=WINDOW)
            bar = Bar(300_000) if batch == BATCH and partitions == 1 else None
            cases.append(Case(f"batch_{batch}{suffix}", "node", run, bar=bar))
            run = client("node.publishing:batches", **work, window=WINDOW, is_native=False)
            cases.append(Case(f"grpc_batch_{batch}{suffix}", "node", run, "over gRPC"))
        messages = whole_batches(SINGLES, batch=CALLERS)
        work = {"callers": CALLERS, "messages": messages, "partitions": partitions}
        run = client("node.publishing:singles", **work)
        cases.append(Case(f"single_{CALLERS}_callers{suffix}", "node", run))
        run = client("node.publishing:singles", **work, is_native=False)
        cases.append(Case(f"grpc_single_{CALLERS}_callers{suffix}", "node", run, "over gRPC"))
    return cases


def redis_case(name: str, note: str, *, messages: int, clients: int, pipeline: int) -> Case:
    """Give a case of Redis, which begins with nothing in memory."""
    work = {"messages": whole_batches(messages), "clients": clients, "pipeline": pipeline}
    publish = client("peers.redis:publish", **work)

    def run(server: Server) -> Stopwatch:
        redis.forget(server.port)
        return publish(server)

    return Case(f"redis_{name}", "redis", run, note)


def jetstream_case(name: str, note: str, function: str, **work: int) -> Case:
    """Give a case of JetStream, which begins with an empty stream."""
    publish = client(function, **work, window=WINDOW)

    def run(server: Server) -> Stopwatch:
        nats.create_stream(server.port)
        return publish(server)

    return Case(f"{name}_batch_1000", name, run, note)


def their_cases() -> list[Case]:
    """Give the cases of the peers."""
    work = {"messages": whole_batches(500_000), "window": WINDOW}
    flushed = client("peers.kafka:publish", **work, topic=kafka.DURABLE)
    kafka_nosync = client("peers.kafka:publish", **work, topic=kafka.DEFAULT)
    work = {"messages": whole_batches(100_000), "window": WINDOW}
    quorum = client("peers.rabbitmq:publish", **work, kind="quorum")
    stream = client("peers.rabbitmq:publish", **work, kind="stream")
    many, one = {"messages": 500_000, "pipeline": BATCH}, {"messages": 60_000, "pipeline": 1}
    atomic, plain = "peers.nats:publish_atomic", "peers.nats:publish"
    few, more = whole_batches(200_000), whole_batches(400_000)
    return [
        redis_case("batch_1000", f"XADD, {WINDOW} connections", clients=WINDOW, **many),
        redis_case("batch_1000_1_connection", "XADD, one batch at a time", clients=1, **many),
        redis_case("single_64_callers", "XADD, 50 connections", clients=REDIS_CLIENTS, **one),
        jetstream_case("jetstream", "atomic batches, sync always", atomic, messages=few),
        jetstream_case("jetstream_nosync", "its default", plain, messages=more, batch=BATCH),
        Case("kafka_batch_1000", "kafka", flushed, "flush.messages=1"),
        Case("kafka_nosync_batch_1000", "kafka", kafka_nosync, "its default"),
        Case("rabbitmq_batch_1000", "rabbitmq", quorum, "quorum queue"),
        Case("rabbitmq_nosync_batch_1000", "rabbitmq", stream, "stream"),
    ]


# All of it

CONTEST = Contest(
    bench="publish",
    openers={
        "node": running,
        "redis": redis.running,
        "jetstream": nats.running,
        "jetstream_nosync": partial(nats.running, is_durable=False),
        "kafka": partial(kafka.running, warm_up_messages=whole_batches(500_000)),
        "rabbitmq": rabbitmq.running,
    },
    ours=our_cases(),
    theirs=their_cases(),
    rounds=ROUNDS,
)
PLOT = {
    "batch_1000": "Waterclock",
    "redis_batch_1000": "Redis",
    "jetstream_batch_1000": "JetStream",
    "kafka_batch_1000": "Kafka",
    "rabbitmq_batch_1000": "RabbitMQ",
    "jetstream_nosync_batch_1000": "JetStream, no fsync",
    "kafka_nosync_batch_1000": "Kafka, no fsync",
    "rabbitmq_nosync_batch_1000": "RabbitMQ, no fsync",
}


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={"publish": ("Publishing batches of 1000", PLOT)})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    add_rates(report, CONTEST, watches)
    peers = ("redis", "jetstream", "kafka", "rabbitmq", "jetstream_nosync", "kafka_nosync")
    compare(report, "batch_1000", {peer: f"{peer}_batch_1000" for peer in peers})
    compare(report, "batch_1000", {"redis_1_connection": "redis_batch_1000_1_connection"})
    compare(report, "single_64_callers", {"redis": "redis_single_64_callers"})
    report.ratio_bars |= RATIO_BARS


if __name__ == "__main__":
    main()
