"""Play trials of simulated clusters, seed after seed, and say what was found in them.

    python -m tests.cluster.simulation --scenario partition --seed 17 --seeds 1 --story

tells one of them again, with all that was done in it.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.display import print_table, progress
from tests.cluster.simulation.plants import PLANTS, first_found
from tests.cluster.simulation.scenarios import SCENARIOS
from tests.cluster.simulation.side_by_side import cpu_s, side_by_side
from tests.cluster.simulation.trials import Played, play_one

FAILED_MAX = 5
"""Trials whose findings are told in full."""


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first trial of each scenario")
    parser.add_argument("--seeds", type=int, default=10, help="how many trials of each scenario")
    parser.add_argument("--nodes", type=int, help="how many there are at first")
    parser.add_argument(
        "--scenario", choices=list(SCENARIOS), action="append", help="not all of them"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--story", action="store_true", help="tell what was done")
    parser.add_argument("--plants", action="store_true", help="plant bugs: each must be found")
    parser.add_argument("--plant", choices=list(PLANTS), action="append", help="not all of them")
    said = parser.parse_args()
    is_good = look_for(said.plant or list(PLANTS)) if said.plants or said.plant else play(said)
    sys.exit(0 if is_good else 1)


def play(said: argparse.Namespace) -> bool:
    """Play trials and print what came of them; return whether nothing was found."""
    scenarios = said.scenario or list(SCENARIOS)
    print(
        "A trial is a cluster of a hundred nodes, or of three to nine that have streams, and ends"
    )
    print(f"when all nodes agree; the first seed of each scenario is {said.seed}", flush=True)
    begun = time.monotonic()
    seeds = range(said.seed, said.seed + said.seeds)
    tasks = [(name, seed, said.nodes) for name in scenarios for seed in seeds]
    trials: list[Played] = []
    with progress("cluster-sim", steps=len(tasks)) as show:
        for each in side_by_side(play_one, tasks, said.processes):
            failed = sum(bool(one.kinds) for one in trials)
            show(f"{each.scenario}, seed {each.seed}, {failed} failed")
            trials.append(each)
            if said.story:
                print(*each.story, sep="\n")
    trials.sort(key=lambda each: (scenarios.index(each.scenario), each.seed))
    failed_trials = [each for each in trials if each.kinds]
    simulated_ms = sum(each.simulated_ms for each in trials)
    footers = [
        f"{len(tasks)} trials, {simulated_ms / 3_600_000:.1f} simulated hours "
        f"in {time.monotonic() - begun:.0f} s, {cpu_s():.0f} s of CPU, {len(failed_trials)} failed",
        *described(failed_trials),
    ]
    rows = [
        row
        for name in scenarios
        for row in rows_of(name, [each for each in trials if each.scenario == name])
    ]
    headings = ["scenario", "trials", "measured", "median", "value", "bar", "found"]
    print_table("Simulated clusters", headings, rows, footers)
    return not failed_trials


def rows_of(name: str, trials: list[Played]) -> list[Sequence[str]]:
    """Return the rows of a scenario: one for each thing it measures, one at least."""
    kinds: Counter[str] = Counter()
    for trial in trials:
        kinds += trial.kinds
    summary = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "nothing"
    rows: list[Sequence[str]] = []
    for what in trials[0].measures or {"": (0.0, 0.0)}:
        values = sorted(trial.measures[what][0] for trial in trials if what in trial.measures)
        if not values:
            rows.append((name, str(len(trials)), "", "", "", "", summary))
            continue
        median, worst = values[len(values) // 2], values[-1]
        bar = trials[0].measures[what][1]
        cells = [f"{each:,.1f}" if bar < 1_000 else f"{each:,.0f}" for each in (median, worst, bar)]
        rows.append((name, str(len(trials)), what, *cells, summary))
    return rows


def described(failed: list[Played]) -> list[str]:
    """Return what was found in the first trials that failed, and how to play them again."""
    lines = []
    for trial in failed[:FAILED_MAX]:
        lines += [f"\n{trial.scenario}, seed {trial.seed}:", trial.findings]
        lines += [f"again with: make cluster-sim SCENARIO={trial.scenario} N=1 SEED={trial.seed}"]
    return lines


def look_for(names: Sequence[str]) -> bool:
    """Plant one bug after the other and print which was found; return whether all were."""
    rows: list[Sequence[str]] = []
    begun = time.monotonic()
    is_all = True
    with progress("cluster-plants", steps=len(names)) as show:
        for name in names:
            show(name)
            plant, started = PLANTS[name], time.monotonic()
            seed, findings = first_found(plant)
            is_all &= seed is not None
            found = f"seed {seed}" if seed is not None else "NOT FOUND"
            found += f", {time.monotonic() - started:.0f} s"
            rows.append((name, plant.scenario, plant.gives_away, found, findings.summary))
    count = sum(row[3].startswith("seed") for row in rows)
    footer = f"{count} of {len(names)} planted bugs found in {time.monotonic() - begun:.0f} s"
    headings = ["planted bug", "scenario", "must be found as", "found", "all that was found"]
    print_table("Bugs planted in simulated clusters", headings, rows, [footer])
    return is_all


if __name__ == "__main__":
    main()
