"""Rounds of faults on a real cluster: `python -m tests.cluster.chaos --rounds 14 --seed 1`.

Nodes are processes in network namespaces, streams are stored in a real PostgreSQL. By a plan of
(seed, round) nodes are killed, paused, cut off, lose packets, join and leave, while clients send
and receive through all of them. Then the oracle looks at what came of it. It needs root.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from tests.cluster.chaos.plan import THEMES, Plan
from tests.cluster.chaos.report import RoundResult, round_text, show_table
from tests.cluster.chaos.rounds import cluster
from tests.kit.rounds import WIDTH, print_json, show_round


async def play(said: argparse.Namespace, folder: Path, console: Console) -> list[RoundResult]:
    """Play all rounds on one cluster."""
    results: list[RoundResult] = []
    async with cluster(folder) as rounds:
        for number in range(said.first, said.first + said.rounds):
            results.append(await rounds.play(Plan.of(said.seed, number, theme=said.theme)))
            show_round(console, round_text(results[-1]), results[-1].verdict.findings)
    return results


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=len(THEMES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--theme", choices=sorted(set(THEMES)), default="", help="only this one")
    parser.add_argument("--json", action="store_true", help="nothing else on the output")
    parser.add_argument("--keep", type=Path, help="a folder for the logs")
    said = parser.parse_args()
    console = Console(stderr=said.json, width=None if sys.stdout.isatty() else WIDTH)
    with (
        tempfile.TemporaryDirectory(prefix="waterclock-chaos-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        kept = said.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        results = runner.run(play(said, kept, console))
    show_table(console, results)
    print_json(said, [each.as_json() for each in results])
    return min(100, sum(bool(each.verdict.findings) for each in results))


if __name__ == "__main__":
    sys.exit(main())
