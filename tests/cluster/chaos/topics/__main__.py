"""Rounds of faults on topics: `python -m tests.cluster.chaos.topics --minutes 30 --seed 1`.

Nodes and an etcd are processes in network namespaces. By a plan of (seed, round) they are killed,
paused, cut off, slowed down, wiped, out of disk, and their clocks set wrong, while clients publish,
schedule, cancel, read and consume through all of them. What came of it is judged by the checkers of
tests/cluster/history. With `--plants` all nodes have a bug, which must be found. With `--alone` it
is one node without etcd, as a check of the harness itself. It needs root.
"""

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import uvloop
from rich.console import Console
from rich.table import Table

from tests.cluster.chaos.topics.plan import THEMES, Fault, Plan
from tests.cluster.chaos.topics.planted import PLANTS
from tests.cluster.chaos.topics.rounds import RoundResult, cluster
from tests.kit.rounds import arguments, look_for, print_json, show_round, workplace
from tests.kit.verdict import Findings

PLANT_TRIES = 3
SUMS = ("publishes acked", "cancels acked", "reschedules acked", "fired", "delivered", "leaders")


async def play(said: argparse.Namespace, folder: Path, console: Console) -> list[RoundResult]:
    """Play rounds on one cluster: so many, or as many as there is time for."""
    results: list[RoundResult] = []
    end_s = time.monotonic() + said.minutes * 60
    async with cluster(folder, is_alone=said.alone, has_spark=said.spark) as rounds:
        number = said.first
        while number < said.first + said.rounds or time.monotonic() < end_s:
            plan = Plan.of(said.seed, number, theme=said.theme, is_alone=said.alone)
            results.append(await rounds.play(plan))
            show_round(console, round_text(results[-1]), results[-1].verdict.findings)
            number += 1
    return results


async def play_planted(name: str, seed: int, folder: Path) -> RoundResult:
    """Play a round on a cluster whose nodes have a bug."""
    async with cluster(folder, plant=name) as rounds:
        return await rounds.play(PLANTS[name].plan(seed))


def round_text(said: RoundResult) -> str:
    """Return what a round was, in a line."""
    counts = said.verdict.counts
    faults = ", ".join(f"{each.value} {counts[each.value]}" for each in Fault if counts[each.value])
    numbers = ", ".join(f"{name} {counts[name]}" for name in SUMS if counts[name])
    outage = f"; no ack for {max(said.outages_ms)} ms" if said.outages_ms else ""
    where = f"round {said.plan.number} {said.plan.theme}"
    return f"{where}, {said.seconds:.0f} s: {faults}; {numbers}{outage}"


def show_table(console: Console, rounds: Sequence[RoundResult]) -> None:
    """Print all rounds by theme, and their sums."""
    table = Table(
        title=f"{len(rounds)} rounds, {sum(each.seconds for each in rounds) / 60:.0f} min"
    )
    for name in ("theme", "rounds", *SUMS, "no ack ms: median", "most", "found"):
        table.add_column(name, justify="left" if name == "theme" else "right")
    by_theme: dict[str, list[RoundResult]] = defaultdict(list)
    for said in rounds:
        by_theme[said.plan.theme].append(said)
    for theme, theirs in [*sorted(by_theme.items()), ("all", list(rounds))]:
        sums = [f"{sum(each.verdict.counts[name] for each in theirs):,}" for name in SUMS]
        outages = [ms for each in theirs for ms in each.outages_ms]
        times = [f"{median(outages):.0f}", str(max(outages))] if outages else ["-", "-"]
        found = sum(bool(each.verdict.findings) for each in theirs)
        table.add_row(theme, str(len(theirs)), *sums, *times, str(found or "-"))
    console.print(table)


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    parser = arguments(__doc__ or "", PLANTS)
    parser.set_defaults(rounds=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long")
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--theme", choices=sorted(THEMES), default="", help="only this one")
    parser.add_argument("--alone", action="store_true", help="one node, without etcd")
    parser.add_argument("--spark", action="store_true", help="Spark reads along")
    said = parser.parse_args()
    with (
        workplace(said) as (console, folder),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):

        def look(name: str, attempt: int) -> tuple[Findings, float]:
            place = folder / f"{name}-{attempt}"
            place.mkdir(parents=True)
            played = runner.run(play_planted(name, said.seed + attempt, place))
            return played.verdict.findings, played.seconds

        folder.mkdir(parents=True, exist_ok=True)
        if said.plants or said.plant:
            names = [said.plant] if said.plant else list(PLANTS)
            found = look_for(PLANTS, names, look, tries=PLANT_TRIES, console=console)
            print_json(said, found)
            return sum(not each for each in found.values())
        results = runner.run(play(said, folder, console))
    show_table(console, results)
    print_json(said, [each.as_json() for each in results])
    return min(100, sum(bool(each.verdict.findings) for each in results))


if __name__ == "__main__":
    sys.exit(main())
