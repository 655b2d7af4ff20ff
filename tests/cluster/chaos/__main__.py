"""Rounds of faults on a real cluster: `python -m tests.cluster.chaos --rounds 14 --seed 1`.

Nodes are processes in network namespaces, streams are stored in a real PostgreSQL. By a plan of
(seed, round) nodes are killed, paused, cut off, lose packets, join and leave, while clients send
and receive through all of them. Then the oracle looks at what came of it. With `--plants` all nodes
have a bug, which must be found. It needs root.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop
from rich.console import Console

from tests.cluster.chaos.plan import THEMES, Plan
from tests.cluster.chaos.planted import PLANTS
from tests.cluster.chaos.report import RoundResult, round_text, show_table
from tests.cluster.chaos.rounds import cluster
from tests.kit.rounds import arguments, look_for, print_json, show_round, workplace
from tests.kit.verdict import Findings

PLANT_TRIES = 2


async def play(said: argparse.Namespace, folder: Path, console: Console) -> list[RoundResult]:
    """Play all rounds on one cluster."""
    results: list[RoundResult] = []
    async with cluster(folder) as rounds:
        for number in range(said.first, said.first + said.rounds):
            results.append(await rounds.play(Plan.of(said.seed, number, theme=said.theme)))
            show_round(console, round_text(results[-1]), results[-1].verdict.findings)
    return results


async def play_planted(name: str, seed: int, folder: Path) -> RoundResult:
    """Play a round on a cluster whose nodes have a bug."""
    async with cluster(folder, plant=name) as rounds:
        return await rounds.play(PLANTS[name].plan(seed))


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    parser = arguments(__doc__ or "", PLANTS)
    parser.set_defaults(rounds=len(THEMES))
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--theme", choices=sorted(set(THEMES)), default="", help="only this one")
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
