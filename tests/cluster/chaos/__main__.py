"""Rounds of faults on a real cluster: `python -m tests.cluster.chaos --rounds 14 --seed 1`.

Nodes are processes in network namespaces, streams are stored in a real PostgreSQL. By a plan of
(seed, round) nodes are killed, paused, cut off, lose packets, join and leave, while clients send
and receive through all of them. Then the oracle looks at what came of it. With `--plants` all nodes
have a bug, which must be found. It needs root.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from tests.cluster.chaos.plan import THEMES, Plan
from tests.cluster.chaos.planted import PLANTS
from tests.cluster.chaos.program import parser_of, play_rounds, run_program
from tests.cluster.chaos.report import RoundResult, round_text, show_table
from tests.cluster.chaos.rounds import cluster

PLANT_TRIES = 2


async def play(said: argparse.Namespace, folder: Path, console: Console) -> list[RoundResult]:
    """Play rounds on one cluster."""
    async with cluster(folder) as rounds:

        async def one(number: int) -> RoundResult:
            return await rounds.play(Plan.of(said.seed, number, theme=said.theme))

        return await play_rounds(said, one, round_text, console)


async def play_planted(name: str, seed: int, folder: Path) -> RoundResult:
    """Play a round on a cluster whose nodes have a bug."""
    async with cluster(folder, plant=name) as rounds:
        return await rounds.play(PLANTS[name].plan(seed))


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    said = parser_of(__doc__ or "", PLANTS, THEMES, rounds=len(THEMES)).parse_args()
    return run_program(
        said, PLANTS, tries=PLANT_TRIES, play=play, play_planted=play_planted, show=show_table
    )


if __name__ == "__main__":
    sys.exit(main())
