"""What security costs: a plain node, one with tokens, and one with tokens over TLS, side by side.

    python -m benchmarks.security              the table, then one line of JSON
    python -m benchmarks.security --record     also writes RESULTS.md

The cost of a case is that of the plain node's case of the same round, as a factor: the node's
processor time for a message, and the time on the wall. Nobody runs a node with tokens and no TLS;
it is here to tell both apart. Clients are raw, one process, and the same for all; every publish is
acknowledged after an fsync that covers it.
"""

from functools import partial
from statistics import median

from benchmarks.client import Stopwatch
from benchmarks.command import run_bench
from benchmarks.contest import RATE, Case, Contest, client, cpu_note
from benchmarks.harness import Bar, Report, Result, is_smoke, scaled, whole_batches
from benchmarks.node.secured import running

ROUNDS = 7
WINDOW = 8
CALLERS = 64
BATCH_MESSAGES = 1_200_000
SINGLES = 6_000
HTTP_SINGLES = 20_000

PLAIN = "plain"
KINDS = {"node": PLAIN, "node_token": "token", "node_tls": "tls"}
BARS = {
    ("batch", "token"): 1.05,
    ("batch", "tls"): 1.15,
    ("batch_1mib", "token"): 1.05,
    ("batch_1mib", "tls"): 1.15,
    ("single", "token"): 1.10,
    ("http_single", "token"): 1.10,
}
"""By what is measured and the kind of node: the most it may cost, as a factor."""


def cases() -> list[Case]:
    """Give every case of every kind of node, the kinds next to each other."""
    batch = partial(client, "node.secured:batches", window=WINDOW)
    works = {
        "batch": batch(
            batch=4_000, value_bytes=128, messages=whole_batches(BATCH_MESSAGES, batch=4_000)
        ),
        "batch_1mib": batch(
            batch=1_000, value_bytes=1_024, messages=whole_batches(BATCH_MESSAGES // 4)
        ),
        "single": client(
            "node.secured:singles", callers=CALLERS, messages=scaled(SINGLES, least=CALLERS)
        ),
        "http_single": client(
            "node.secured:http_singles",
            callers=CALLERS,
            messages=scaled(HTTP_SINGLES, least=CALLERS),
        ),
    }
    return [
        Case(f"{what}_{kind}", server, run)
        for what, run in works.items()
        for server, kind in KINDS.items()
    ]


CONTEST = Contest(
    bench="security",
    openers={
        "node": partial(running, kind="plain"),
        "node_token": partial(running, kind="token"),
        "node_tls": partial(running, kind="tls"),
    },
    ours=cases(),
    theirs=[],
    rounds=ROUNDS,
)


def main() -> None:
    """Run everything."""
    run_bench(CONTEST, __doc__, finish, plots={})


def finish(report: Report, watches: dict[str, list[Stopwatch]]) -> None:
    """Put the rates into the report, and what each costs beside the plain node."""
    for case in CONTEST.ours:
        rates = [watch.rate for watch in watches[case.name]]
        report.results.append(Result(case.name, rates, RATE, None, cpu_note(watches[case.name])))
    for case in CONTEST.ours:
        what, _, kind = case.name.rpartition("_")
        if kind == PLAIN:
            continue
        pairs = list(zip(watches[case.name], watches[f"{what}_{PLAIN}"], strict=True))
        limit = BARS.get((what, kind))
        bar = None if limit is None else Bar(limit, is_floor=False)
        wall = [plain.rate / secure.rate for secure, plain in pairs]
        report.add(f"{case.name}_wall", wall, "of plain", bar=bar)
        # In a smoke run a node takes less than the system counts.
        if not is_smoke():
            cpu = [secure.server_cpu_us / plain.server_cpu_us for secure, plain in pairs]
            report.add(f"{case.name}_cpu", cpu, "of plain", bar=bar, note="of the node")
            # Whatever disturbs a run only adds to it, so the cheapest ones tell what it costs.
            secure, plain = (
                min(watch.server_cpu_us for watch in side) for side in zip(*pairs, strict=True)
            )
            note = "of the node, the cheapest rounds"
            report.add(f"{case.name}_cpu_least", [secure / plain], "of plain", bar=bar, note=note)
            report.ratios[f"{case.name}_vs_{PLAIN}"] = 1 / median(wall)


if __name__ == "__main__":
    main()
