"""Play simulated clusters with replicated topics, seed after seed, and say what was found.

    python -m tests.cluster.simulation.topics --seed 17 --seeds 1 --story

tells one of them again, with all that was done in it.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.display import print_table, progress
from tests.cluster.simulation.side_by_side import cpu_s, side_by_side
from tests.cluster.simulation.topics import world
from tests.cluster.simulation.topics.plants import PLANTS
from tests.cluster.simulation.topics.trials import Heard, found, play_all
from tests.cluster.simulation.topics.world import played

FAILED_MAX = 5
"""Seeds whose findings are told in full."""


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first trial")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--story", action="store_true", help="tell what was done")
    parser.add_argument("--plants", action="store_true", help="plant bugs: each must be found")
    parser.add_argument("--plant", choices=list(PLANTS), action="append", help="not all of them")
    said = parser.parse_args()
    if said.plants or said.plant:
        sys.exit(0 if look_for(said.plant or list(PLANTS), said.processes) else 1)
    if said.story:
        sys.exit(0 if tell(said.seed) else 1)
    sys.exit(0 if run(said) else 1)


def tell(seed: int) -> bool:
    """Tell one seed, with all that was done in it."""
    one = played(seed)
    print(*one.story, sep="\n")
    print(one.findings)
    if one.error is not None:
        raise one.error
    return not one.findings


def run(said: argparse.Namespace) -> bool:
    """Play seeds and print what came of them; return whether nothing was found."""
    print(" ".join((world.__doc__ or "").split("\n\n", 1)[1].split()))
    print(
        f"replay with: make cluster-sim SCENARIO=topics N={said.seeds} SEED={said.seed}", flush=True
    )
    begun = time.monotonic()
    failed: list[Heard] = []
    kinds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    simulated_ms = 0
    with progress("replicated topics", steps=said.seeds) as show:
        for each in play_all(range(said.seed, said.seed + said.seeds), said.processes):
            show(f"seed {each.seed}, {len(failed)} failed")
            kinds += each.kinds
            counts += each.counts
            faults += each.faults
            simulated_ms += each.simulated_ms
            if each.kinds:
                failed.append(each)
    seconds = time.monotonic() - begun
    rows = [(name, f"{count:,}") for name, count in sorted((counts + faults).items())]
    footers = [
        f"{said.seeds} seeds, {simulated_ms / 3_600_000:.1f} simulated hours in {seconds:.0f} s, "
        f"{cpu_s():.0f} s of CPU, "
        f"{sum(faults.values()) / said.seeds:.1f} faults a seed, {len(failed)} failed",
        *(f"{kind}: {count}" for kind, count in sorted(kinds.items())),
    ]
    for each in sorted(failed)[:FAILED_MAX]:
        footers += [f"\nseed {each.seed}:", each.findings]
        footers += [
            f"its story: python -m tests.cluster.simulation.topics --story --seed {each.seed}"
        ]
    print_table("Simulated clusters with replicated topics", ["what", "times"], rows, footers)
    return not failed


def look_for(names: Sequence[str], processes: int) -> bool:
    """Plant one bug after the other and print which was found; return whether all were."""
    rows: list[Sequence[str]] = []
    with progress("cluster-plants", steps=len(names)) as show:
        for name, seed, summary, seconds in side_by_side(found, names, processes):
            show(name)
            text = f"seed {seed}" if seed is not None else "NOT FOUND"
            wanted = ", ".join(sorted(PLANTS[name].gives_away))
            rows.append((name, wanted, f"{text}, {seconds:.0f} s", summary))
    count = sum(row[2].startswith("seed") for row in rows)
    footer = f"{count} of {len(names)} planted bugs found"
    headings = ["planted bug", "must be found as", "found", "all that was found"]
    rows.sort(key=lambda row: row[0])
    print_table("Bugs planted in replicated topics", headings, rows, [footer])
    return count == len(names)


if __name__ == "__main__":
    main()
