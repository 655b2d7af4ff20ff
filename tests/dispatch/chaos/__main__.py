"""Rounds of faults on a real Redis: `python -m tests.dispatch.chaos --rounds 100 --seed 1`.

Each round has a plan by (seed, round): dispatchers and workers, as processes, are killed, paused
and cut off, Redis restarts and fails over, messages are slow or poison. Then the oracle looks at
what is in the streams and at what everybody wrote down. With `--plants` every round has a bug
planted in its processes, and it must be found.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from tests.dispatch.chaos.plan import THEMES, Plan
from tests.dispatch.chaos.planted import PLANTS
from tests.dispatch.chaos.report import (
    WIDTH,
    RoundResult,
    findings_of,
    is_late,
    show_round,
    show_table,
)
from tests.dispatch.chaos.rounds import Rounds

PLANT_PATIENCE_S = 4.0
PLANT_TRIES = 3
LATE_SHARE_MAX = 0.02
"""Take-overs that may be late for the machine's sake: it is shared, and a standby must run to take
over. All of them are stated."""


def run_plant(rounds: Rounds, name: str, *, seed: int, console: Console) -> bool:
    """Say whether a planted bug is found, by a finding that names it."""
    plant = PLANTS[name]
    for attempt in range(PLANT_TRIES):
        said = rounds.play(plant.plan(seed + attempt), plant=name, patience_s=PLANT_PATIENCE_S)
        findings = set(said.verdict.findings)
        if any(map(is_late, said.verdict.take_overs)):
            findings.add("late take-over")
        is_found = bool(plant.gives_away & findings)
        result = f"{'found' if is_found else 'not found'} ({findings_of(said.verdict) or findings})"
        console.print(f"{name}: {result}, {said.seconds:.0f} s", soft_wrap=True, highlight=False)
        if is_found:
            return True
    return False


def run_plants(rounds: Rounds, names: list[str], *, seed: int, console: Console) -> dict[str, bool]:
    """Look for each of these bugs."""
    found = {name: run_plant(rounds, name, seed=seed, console=console) for name in names}
    console.print(f"{sum(found.values())} of {len(found)} planted bugs found")
    return found


def late_findings(rounds: list[RoundResult]) -> str:
    """Return what is wrong with the take-overs of a whole run, or nothing."""
    taken = [each for said in rounds for each in said.verdict.take_overs]
    late = sum(map(is_late, taken))
    if late > max(1, LATE_SHARE_MAX * len(taken)):
        return f"{late} of {len(taken)} take-overs were late"
    return ""


def parsed() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--source-kind", choices=["stream", "pubsub"], default="stream")
    parser.add_argument("--theme", choices=sorted(set(THEMES)), default="", help="only this one")
    parser.add_argument("--plant", choices=list(PLANTS), help="one bug: is it found?")
    parser.add_argument("--plants", action="store_true", help="all of them")
    parser.add_argument("--json", action="store_true", help="nothing else on the output")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and journals")
    return parser.parse_args()


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    said = parsed()
    console = Console(stderr=said.json, width=None if sys.stdout.isatty() else WIDTH)
    with ExitStack() as stack:
        folder = said.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="waterclock-chaos-"))
        )
        rounds = stack.enter_context(Rounds(folder))
        if said.plants or said.plant:
            names = [said.plant] if said.plant else list(PLANTS)
            found = run_plants(rounds, names, seed=said.seed, console=console)
            if said.json:
                print(json.dumps(found))
            return sum(not each for each in found.values())
        played: list[RoundResult] = []
        for number in range(said.first, said.first + said.rounds):
            plan = Plan.of(said.seed, number, said.source_kind, theme=said.theme)
            played.append(rounds.play(plan))
            show_round(console, played[-1])
        show_table(console, played)
        late = late_findings(played)
        if late:
            console.print(f"Found: {late}.", highlight=False)
        if said.json:
            print(json.dumps([each.as_json() for each in played], indent=1))
        return min(100, sum(bool(each.verdict.findings) for each in played) + bool(late))


if __name__ == "__main__":
    sys.exit(main())
