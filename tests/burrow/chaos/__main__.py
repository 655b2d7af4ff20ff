"""Rounds of faults on a real Kafka: `python -m tests.burrow.chaos --rounds 20 --seed 1`.

Each round has a plan by its seed: consumers of a group, as processes, join, leave, are killed and
paused, the broker restarts, messages are slow, flaky or poison. Then the oracle looks at what they
wrote down and what the broker kept. Rounds on the mock cluster of librdkafka add what one broker
cannot do. With `--plants` every round has a bug planted in its consumers, and it must be found.
"""

import sys
from pathlib import Path

from tests.burrow.chaos.clusters import Cluster, MockCluster, RealCluster
from tests.burrow.chaos.conductor import PATIENCE_S, Conductor
from tests.burrow.chaos.oracle import Oracle
from tests.burrow.chaos.plan import Plan
from tests.burrow.chaos.planted import PLANTS
from tests.burrow.chaos.report import RoundResult, round_text, show_table
from tests.burrow.kafka.kafka_broker import running
from tests.kit.rounds import arguments, look_for, print_json, show_round, workplace
from tests.kit.verdict import Findings

PLANT_PATIENCE_S = 15.0
PLANT_TRIES = 6


def run_round(
    cluster: Cluster, plan: Plan, folder: Path, *, plant: str = "", patience_s: float = PATIENCE_S
) -> RoundResult:
    """Perform a plan, and judge what came of it."""
    conductor = Conductor(cluster, plan, folder, plant=plant, patience_s=patience_s)
    history = conductor.run()
    return RoundResult(plan, Oracle(history).judge(), history.seconds)


def main() -> int:
    """Run what is asked for; the result is the number of rounds in which something was found."""
    parser = arguments(__doc__, PLANTS)
    parser.add_argument("--mock", type=int, default=0, help="rounds on the mock cluster, besides")
    parser.add_argument("--kind", default=None, help="gentle, members or broker")
    said = parser.parse_args()
    with workplace(said) as (console, folder), running(folder / "kafka") as broker:
        real = RealCluster(broker)

        def play(name: str, attempt: int) -> tuple[Findings, float]:
            plan, place = PLANTS[name].plan(said.seed + attempt), folder / f"{name}-{attempt}"
            played = run_round(real, plan, place, plant=name, patience_s=PLANT_PATIENCE_S)
            return played.verdict.findings, played.seconds

        if said.plants or said.plant:
            names = [said.plant] if said.plant else list(PLANTS)
            found = look_for(PLANTS, names, play, tries=PLANT_TRIES, console=console)
            print_json(said, found)
            return sum(not each for each in found.values())
        rounds: list[RoundResult] = []
        for at in range(said.rounds + said.mock):
            is_mock = at >= said.rounds
            plan = Plan.of(said.seed + at, kind="mock" if is_mock else said.kind)
            cluster: Cluster = MockCluster(plan.assignor) if is_mock else real
            rounds.append(run_round(cluster, plan, folder / f"round-{at}"))
            show_round(console, round_text(rounds[-1]), rounds[-1].verdict.findings)
        show_table(console, rounds)
        print_json(said, [each.as_json() for each in rounds])
        return sum(bool(each.verdict.findings) for each in rounds)


if __name__ == "__main__":
    sys.exit(main())
