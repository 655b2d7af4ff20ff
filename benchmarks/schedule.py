"""Messages for later: publishing and cancelling them, ten million pending, and a storm of them.

    python -m benchmarks.schedule              the table, then one line of JSON
    python -m benchmarks.schedule --record     also writes RESULTS.md and the plot beside it

Publishing for later goes beside beanstalkd (put with a delay), Redis (the sorted-set pattern) and
RabbitMQ (a queue whose messages expire into another). Everyone acknowledges after an fsync that
covers the message, unless the name says `nosync`. The rest is about our node alone: `pending.py`.
"""

from functools import partial

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Case, Contest, add_rates, client, compare
from benchmarks.harness import Bar, Report, whole_batches
from benchmarks.node.running import running
from benchmarks.peers import beanstalkd, rabbitmq, redis
from benchmarks.peers.server import Server
from benchmarks.pending import Pending, pending_steps

ROUNDS = 3
WINDOW = 8
BATCH = 1_000
MESSAGES = 1_000_000
CANCELLED = 200_000
CASES = (
    "publish",
    "pending_10m_mb",
    "restart_10m_s",
    "storm_100k_lateness_p99_ms",
    "storm_stall_max_ms",
    "cancel",
)
"""The names that are compared over time; all others are extra."""
ORDER = {case: number for number, case in enumerate(CASES)}


def our_cases() -> list[Case]:
    """Give the cases of our node that have peers, or alternate with those."""
    work = {"batch": BATCH, "window": WINDOW}
    publish = client("node.scheduling:publish", **work, messages=whole_batches(MESSAGES))
    cancel = client("node.scheduling:cancel", **work, messages=whole_batches(CANCELLED))
    scattered = client(
        "node.scheduling:cancel",
        **work,
        messages=whole_batches(CANCELLED),
        is_scattered=True,
    )
    return [
        Case("publish", "node", publish, "due in 1 to 5 hours", Bar(300_000)),
        Case("cancel", "node", cancel, "by message id, 1000 a call", Bar(50_000)),
        Case("cancel_scattered", "node", scattered, "the same ids, shuffled", Bar(50_000)),
    ]


def their_cases() -> list[Case]:
    """Give the cases of the peers."""
    put = "peers.beanstalkd:schedule"
    few = client(put, messages=whole_batches(10_000), window=WINDOW)
    more = client(put, messages=whole_batches(100_000), window=WINDOW)
    work = {"messages": whole_batches(300_000), "clients": WINDOW, "pipeline": BATCH}
    add = client("peers.redis:schedule", **work)
    expire = client("peers.rabbitmq:schedule", messages=whole_batches(50_000), window=WINDOW)

    def zset(server: Server) -> Stopwatch:
        redis.forget(server.port)
        return add(server)

    return [
        Case("beanstalkd_publish", "beanstalkd", few, "put with a delay, -f 0"),
        Case("redis_zset_publish", "redis", zset, "ZADD, 8 connections"),
        Case("rabbitmq_ttl_publish", "rabbitmq", expire, "quorum queue"),
        Case("beanstalkd_nosync_publish", "beanstalkd_nosync", more, "its default, fsync at 50 ms"),
    ]


CONTEST = Contest(
    bench="schedule",
    openers={
        "node": running,
        "beanstalkd": beanstalkd.running,
        "beanstalkd_nosync": partial(beanstalkd.running, is_durable=False),
        "redis": redis.running,
        "rabbitmq": rabbitmq.running,
    },
    ours=our_cases(),
    theirs=their_cases(),
    rounds=ROUNDS,
)
PLOT = {
    "publish": "Waterclock",
    "redis_zset_publish": "Redis sorted set",
    "rabbitmq_ttl_publish": "RabbitMQ TTL",
    "beanstalkd_publish": "beanstalkd",
    "beanstalkd_nosync_publish": "beanstalkd, no fsync",
}


def main() -> None:
    """Run everything."""
    plots = {"schedule": ("Publishing for later, in batches of 1000", PLOT)}
    run_bench(CONTEST, __doc__, finish, plots=plots, then=Pending, steps=pending_steps())


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    add_rates(report, CONTEST, watches)
    peers = ("beanstalkd", "redis_zset", "rabbitmq_ttl", "beanstalkd_nosync")
    compare(report, "publish", {peer: f"{peer}_publish" for peer in peers})
    report.results.sort(key=lambda result: ORDER.get(result.case, len(ORDER)))


if __name__ == "__main__":
    main()
