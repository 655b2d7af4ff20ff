"""Our cases and the peers' in alternating rounds, and what they make of each other.

Every case runs once a round, one after the other, so that a slow minute of a shared machine hits
all of them. A ratio compares medians: ours by theirs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median

from benchmarks.client import Stopwatch, run_client
from benchmarks.harness import Bar, Report, Result, Tick, alternate, rounds_of
from benchmarks.peers.lineup import Opener, Servers, lineup
from benchmarks.peers.server import Server

RATE = "messages/s"


@dataclass(frozen=True, slots=True)
class Case:
    """What one server is asked to do, once a round."""

    name: str
    """A peer's begins with the peer's."""
    server: str
    run: Callable[[Server], Stopwatch]
    note: str = ""
    bar: Bar | None = None


def client(function: str, **arguments: object) -> Callable[[Server], Stopwatch]:
    """Give a run that has a client work in a process of its own: see `client.py`."""
    return lambda server: run_client(f"benchmarks.{function}", server, **arguments)


@dataclass(frozen=True, slots=True)
class Contest:
    """One benchmark: servers, and the cases of ours and of the peers."""

    bench: str
    openers: Mapping[str, Opener]
    """By name. Ours is called `node`."""
    ours: Sequence[Case]
    theirs: Sequence[Case]
    rounds: int

    def steps(self) -> int:
        """Give how many steps the progress bar has."""
        return len(self.openers) + rounds_of(self.rounds) * (len(self.ours) + len(self.theirs))

    def run(self, report: Report, scratch: Path, tick: Tick) -> dict[str, list[Stopwatch]]:
        """Start the servers, run all rounds, and give everything measured, by case."""
        with lineup(report, scratch, self.openers, tick) as servers:
            cases = [c for c in _dealt(self.ours, self.theirs) if c.server in servers]
            runs = {case.name: _bound(case, servers) for case in cases}
            return alternate(runs, rounds=rounds_of(self.rounds), tick=tick)


def _bound(case: Case, servers: Servers) -> Callable[[], Stopwatch]:
    return lambda: case.run(servers[case.server])


def _dealt(ours: Iterable[Case], theirs: Iterable[Case]) -> list[Case]:
    """Give all cases, one of ours, one of theirs, and so on."""
    return [case for pair in zip_longest(ours, theirs) for case in pair if case is not None]


def add_rates(report: Report, contest: Contest, watches: Mapping[str, Sequence[Stopwatch]]) -> None:
    """Put into the report what each case came to, and the processor time it took."""
    for case in (*contest.ours, *contest.theirs):
        if case.name not in watches:
            continue
        rates = [watch.rate for watch in watches[case.name]]
        note = "; ".join(filter(None, [case.note, cpu_note(watches[case.name])]))
        results = report.results if case in contest.ours else report.peers
        results.append(Result(case.name, rates, RATE, case.bar, note))


def cpu_note(watches: Sequence[Stopwatch]) -> str:
    """Tell the processor time of a million messages."""
    server = median(watch.server_cpu_us for watch in watches)
    client = median(watch.client_cpu_us for watch in watches)
    return f"CPU s/M: server {server:.2f}, client {client:.2f}"


def compare(report: Report, case: str, peers: Mapping[str, str], *, name: str = "") -> None:
    """Put `<case>_vs_<peer>`, or with another name, into the report, for each peer measured."""
    values = {result.case: result.value for result in (*report.results, *report.peers)}
    for peer, theirs in peers.items():
        if theirs in values:
            report.ratios[f"{name or case}_vs_{peer}"] = values[case] / values[theirs]
