"""Reading what is there as the one member of a group, beside Redis, JetStream, Kafka and RabbitMQ.

    python -m benchmarks.consume              the table, then one line of JSON
    python -m benchmarks.consume --record     also writes RESULTS.md and the plot beside it

Each round reads the same messages of 128 B, published in batches of 1000, from the beginning. All
acknowledge, in bulk where they can, and save their progress now and then; where a peer reads
faster without acknowledging, the name says `noack`. Our client hands out Arrow batches, or
messages one by one; those of the peers only count what comes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.client import Stopwatch, run_client
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, add_rates, client, compare
from benchmarks.harness import Bar, Report, whole_batches
from benchmarks.node.running import running
from benchmarks.peers import kafka, nats, rabbitmq, redis
from benchmarks.peers.server import Server

ROUNDS = 5
TOPIC = "filled"
WINDOW = 8
BATCH = 1_000
MESSAGES = 1_000_000
SINGLES = 200_000
SLOW_MESSAGES = 100_000
"""What RabbitMQ has to read in a round: its queue is filled anew for each."""


# Servers, filled


@contextmanager
def filled_node(folder: Path) -> Iterator[Server]:
    """Run our node with messages in it."""
    with running(folder) as server:
        work = {"topic": TOPIC, "batch": BATCH, "messages": whole_batches(MESSAGES)}
        run_client("benchmarks.node.consuming:fill", server, **work, window=WINDOW)
        yield server


@contextmanager
def filled_redis(folder: Path) -> Iterator[Server]:
    """Run Redis with messages in a stream."""
    with redis.running(folder) as server:
        work = {"messages": whole_batches(MESSAGES), "clients": WINDOW, "pipeline": BATCH}
        run_client("benchmarks.peers.redis:publish", server, **work)
        yield server


@contextmanager
def filled_nats(folder: Path) -> Iterator[Server]:
    """Run JetStream with messages in a stream."""
    with nats.running(folder, is_durable=False) as server:
        work = {"messages": whole_batches(MESSAGES), "batch": BATCH, "window": WINDOW}
        run_client("benchmarks.peers.nats:publish", server, **work)
        yield server


# Cases


def our_cases() -> list[Case]:
    """Give the cases of our node."""
    raw = client("node.consuming:raw_batches", topic=TOPIC, messages=whole_batches(MESSAGES))
    each = client("node.consuming:each_message", topic=TOPIC, messages=whole_batches(SINGLES))
    return [
        Case("raw_batches", "node", raw, "acked batch by batch", Bar(1_000_000)),
        Case("async_for_acks", "node", each, "acked one by one", Bar(100_000)),
    ]


def their_cases() -> list[Case]:
    """Give the cases of the peers."""
    work = {"messages": whole_batches(MESSAGES), "batch": BATCH}
    acked = client("peers.redis:consume", **work, window=4, has_acks=True)
    noack = client("peers.redis:consume", **work, window=4, has_acks=False)
    pulled = client("peers.nats:consume", **work, window=4)
    polled = client("peers.kafka:consume", **work, topic=kafka.DEFAULT)
    less = {"messages": whole_batches(SLOW_MESSAGES), "batch": BATCH}
    queue = client("peers.rabbitmq:consume", **less, window=8)
    return [
        Case("redis_raw_batches", "redis", acked, "XREADGROUP and XACK"),
        Case("redis_noack_raw_batches", "redis", noack, "XREADGROUP NOACK"),
        Case("jetstream_raw_batches", "jetstream", pulled, "pull, an ack covers all before it"),
        Case("kafka_raw_batches", "kafka", polled, "consume(1000)"),
        Case("rabbitmq_raw_batches", "rabbitmq", queue, "quorum queue"),
    ]


# All of it

CONTEST = Contest(
    bench="consume",
    openers={
        "node": filled_node,
        "redis": filled_redis,
        "jetstream": filled_nats,
        "kafka": partial(kafka.running, warm_up_messages=whole_batches(MESSAGES)),
        "rabbitmq": rabbitmq.running,
    },
    ours=our_cases(),
    theirs=their_cases(),
    rounds=ROUNDS,
)
PLOT = {
    "raw_batches": "Waterclock",
    "redis_raw_batches": "Redis",
    "jetstream_raw_batches": "JetStream",
    "kafka_raw_batches": "Kafka",
    "rabbitmq_raw_batches": "RabbitMQ",
    "redis_noack_raw_batches": "Redis, no acks",
}


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={"consume": ("Reading in a group", PLOT)})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    add_rates(report, CONTEST, watches)
    peers = ("redis", "jetstream", "kafka", "rabbitmq", "redis_noack")
    compare(report, "raw_batches", {peer: f"{peer}_raw_batches" for peer in peers})


if __name__ == "__main__":
    main()
