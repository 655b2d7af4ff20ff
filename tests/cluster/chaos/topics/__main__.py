"""Rounds of faults on topics: `python -m tests.cluster.chaos.topics --minutes 30 --seed 1`.

Nodes and an etcd are processes in network namespaces. By a plan of (seed, round) they are killed,
paused, cut off, slowed down, wiped, out of disk, and their clocks set wrong, while clients publish
for a majority, the leader or all to acknowledge, schedule, cancel, store into streams, read and
consume through all of them. What came of it is judged by the checkers of tests/cluster/history; of
a round with findings all that may explain them is kept (`evidence.py`).
With `--plants` all nodes have a bug, which must be found. With `--alone` it is one node without
etcd, as a check of the harness itself. It needs root.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.cluster.chaos.program import by_theme, heading, parser_of, play_rounds, run_program
from tests.cluster.chaos.topics.grpc_clients import ERRORS
from tests.cluster.chaos.topics.plan import THEMES, Fault, Plan
from tests.cluster.chaos.topics.planted import PLANTS
from tests.cluster.chaos.topics.rounds import RoundResult, cluster

PLANT_TRIES = 3
EVIDENCE = Path(tempfile.gettempdir()) / "waterclock-findings"
SUMS = (
    "publishes acked", "acked for leader", "acked for all", "cancels acked", "reschedules acked",
    "stored", "fired", "delivered", "leaders", ERRORS,
)  # fmt: skip


async def play(said: argparse.Namespace, folder: Path, console: Console) -> list[RoundResult]:
    """Play rounds on one cluster."""
    running = cluster(folder, said.evidence, is_alone=said.alone, has_spark=said.spark)
    async with running as rounds:

        async def one(number: int) -> RoundResult:
            plan = Plan.of(said.seed, number, theme=said.theme, is_alone=said.alone)
            return await rounds.play(plan)

        return await play_rounds(said, one, round_text, console)


async def play_planted(name: str, seed: int, folder: Path) -> RoundResult:
    """Play a round on a cluster whose nodes have a bug."""
    async with cluster(folder, folder / "evidence", plant=name) as rounds:
        return await rounds.play(PLANTS[name].plan(seed))


def round_text(said: RoundResult) -> str:
    """Return what a round was, in a line."""
    own = said.verdict.counts["fired by the node's own clock"]
    clocks = f"; {own} fired by a clock that was set, and judged by it" if own else ""
    outage = f"; no ack for {max(said.outages_ms)} ms" if said.outages_ms else ""
    kept = f"; kept in {said.kept}" if said.kept else ""
    return f"{heading(said, Fault, SUMS)}{clocks}{outage}{kept}"


def show_table(console: Console, rounds: Sequence[RoundResult]) -> None:
    """Print all rounds by theme, and their sums."""
    table = Table(
        title=f"{len(rounds)} rounds, {sum(each.seconds for each in rounds) / 60:.0f} min"
    )
    for name in ("theme", "rounds", *SUMS, "no ack ms: median", "most", "found"):
        table.add_column(name, justify="left" if name == "theme" else "right")
    for theme, theirs in [*by_theme(rounds), ("all", list(rounds))]:
        sums = [f"{sum(each.verdict.counts[name] for each in theirs):,}" for name in SUMS]
        outages = [ms for each in theirs for ms in each.outages_ms]
        times = [f"{median(outages):.0f}", str(max(outages))] if outages else ["-", "-"]
        found = sum(bool(each.verdict.findings) for each in theirs)
        table.add_row(theme, str(len(theirs)), *sums, *times, str(found or "-"))
    console.print(table)


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    parser = parser_of(__doc__ or "", PLANTS, THEMES, rounds=1)
    parser.add_argument("--alone", action="store_true", help="one node, without etcd")
    parser.add_argument("--spark", action="store_true", help="Spark reads along")
    parser.add_argument(
        "--evidence", type=Path, default=EVIDENCE, help="a folder for rounds with findings"
    )
    return run_program(
        parser.parse_args(),
        PLANTS,
        tries=PLANT_TRIES,
        play=play,
        play_planted=play_planted,
        show=show_table,
    )


if __name__ == "__main__":
    sys.exit(main())
