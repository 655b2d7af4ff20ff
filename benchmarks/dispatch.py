"""Messages through the dispatcher and its workers, beside the task queues people use on Redis.

    python -m benchmarks.dispatch              the table, then one line of JSON
    python -m benchmarks.dispatch --record     also writes RESULTS.md and the plot beside it

End to end: from the first message published to the last entry in the output stream, with four
worker processes on one Redis 7 (`appendfsync everysec`). The job parses the JSON and adds one entry
to the output; only then the message is acknowledged. Messages are encoded beforehand by the code of
each queue, and published through one pipelined connection, the same for all; each queue has the
best settings that were found for it, which its line tells. Ours recognises repeats by uuid and
refuses leaders that are over meanwhile, which the peers are spared.
"""

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import Contest, add_rates, compare
from benchmarks.dispatch_ours import TAKEOVERS, Takeovers, cases, running
from benchmarks.harness import Report, rounds_of
from benchmarks.peers import celery, dramatiq, redis_group, taskiq

ROUNDS = 3
PEERS = {
    "xreadgroup": redis_group.PEER,
    "dramatiq": dramatiq.PEER,
    "taskiq": taskiq.PEER,
    "celery": celery.PEER,
}
CASE = "end_to_end"
CONTEST = Contest(
    bench="dispatch",
    openers={"node": running, **{peer.name: peer.opener for peer in PEERS.values()}},
    ours=cases(),
    theirs=[peer.case() for peer in PEERS.values()],
    rounds=ROUNDS,
)
PLOT = {
    CASE: "Waterclock, stream source",
    f"{CASE}_pubsub": "Waterclock, pub/sub source",
    "xreadgroup_end_to_end": "XREADGROUP loop",
    "dramatiq_end_to_end": "Dramatiq",
    "taskiq_end_to_end": "taskiq",
    "celery_end_to_end": "Celery",
}


def main() -> None:
    """Run everything."""
    title = "Jobs end to end, four workers on one Redis"
    plots = {"dispatch": (title, PLOT)}
    steps = rounds_of(TAKEOVERS)
    run_bench(CONTEST, __doc__, finish, plots=plots, then=Takeovers, steps=steps)


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the results into the report, and compare."""
    add_rates(report, CONTEST, watches)
    compare(report, CASE, {name: f"{peer.name}_{CASE}" for name, peer in PEERS.items()})
    twice = {case: sum(watch.more["twice"] for watch in runs) for case, runs in watches.items()}
    if repeated := {case: count for case, count in twice.items() if count}:
        report.notes.append(f"Entries written twice: {repeated}.")


if __name__ == "__main__":
    main()
