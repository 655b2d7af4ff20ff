"""Rounds of faults on a real Kafka: `python -m tests.burrow.chaos --rounds 20 --seed 1`.

Each round has a plan by its seed: consumers of a group, as processes, join, leave, are killed and
paused, the broker restarts, messages are slow, flaky or poison. Then the oracle looks at what they
wrote down and what the broker kept. Rounds on the mock cluster of librdkafka add what one broker
cannot do. With `--plants` every round has a bug planted in its consumers, and it must be found.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from tests.burrow.chaos.clusters import Cluster, MockCluster, RealCluster
from tests.burrow.chaos.conductor import PATIENCE_S, Conductor
from tests.burrow.chaos.oracle import Oracle
from tests.burrow.chaos.plan import Plan
from tests.burrow.chaos.planted import PLANTS
from tests.burrow.chaos.report import WIDTH, RoundResult, findings_text, show_round, show_table
from tests.burrow.kafka.kafka_broker import running

PLANT_PATIENCE_S = 15.0
PLANT_TRIES = 6


def run_round(
    cluster: Cluster, plan: Plan, folder: Path, *, plant: str = "", patience_s: float = PATIENCE_S
) -> RoundResult:
    """Perform a plan, and judge what came of it."""
    conductor = Conductor(cluster, plan, folder, plant=plant, patience_s=patience_s)
    history = conductor.run()
    return RoundResult(plan, Oracle(history).judge(), history.seconds)


def run_plant(cluster: Cluster, name: str, folder: Path, *, seed: int, console: Console) -> bool:
    """Say whether a planted bug is found, by a finding that names it."""
    plant = PLANTS[name]
    for at in range(PLANT_TRIES):
        plan = plant.plan(seed + at)
        place = folder / f"{name}-{at}"
        said = run_round(cluster, plan, place, plant=name, patience_s=PLANT_PATIENCE_S)
        is_found = bool(plant.gives_away & set(said.verdict.findings))
        result = f"{'found' if is_found else 'not found'} ({findings_text(said.verdict)})"
        console.print(f"{name}: {result} by seed {plan.seed}, {said.seconds:.0f} s", soft_wrap=True)
        if is_found:
            return True
    return False


def main() -> int:
    """Run what is asked for; the result is the number of rounds in which something was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--mock", type=int, default=0, help="rounds on the mock cluster, besides")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", default=None, help="gentle, members or broker")
    parser.add_argument("--plant", choices=list(PLANTS), help="one bug: is it found?")
    parser.add_argument("--plants", action="store_true", help="all of them")
    parser.add_argument("--json", action="store_true", help="nothing else on the output")
    parser.add_argument("--keep", type=Path, help="a folder for the journals")
    said = parser.parse_args()
    console = Console(stderr=said.json, width=None if sys.stdout.isatty() else WIDTH)
    with ExitStack() as stack:
        folder = said.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="waterclock-chaos-"))
        )
        real = RealCluster(stack.enter_context(running(folder / "kafka")))
        if said.plants or said.plant:
            names = [said.plant] if said.plant else list(PLANTS)
            found = {
                name: run_plant(real, name, folder, seed=said.seed, console=console)
                for name in names
            }
            missed = [name for name, is_found in found.items() if not is_found]
            console.print(f"{len(names) - len(missed)} of {len(names)} planted bugs found")
            if said.json:
                print(json.dumps(found))
            return len(missed)
        rounds: list[RoundResult] = []
        for at in range(said.rounds + said.mock):
            is_mock = at >= said.rounds
            plan = Plan.of(said.seed + at, kind="mock" if is_mock else said.kind)
            cluster: Cluster = MockCluster(plan.assignor) if is_mock else real
            rounds.append(run_round(cluster, plan, folder / f"round-{at}"))
            show_round(console, rounds[-1])
        show_table(console, rounds)
        if said.json:
            print(json.dumps([each.as_json() for each in rounds], indent=1))
        return sum(bool(each.verdict.findings) for each in rounds)


if __name__ == "__main__":
    sys.exit(main())
