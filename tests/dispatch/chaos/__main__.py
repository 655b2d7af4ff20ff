"""Rounds of faults on a real Redis: `python -m tests.dispatch.chaos --rounds 100 --seed 1`.

Each round has a plan by (seed, round): dispatchers and workers, as processes, are killed, paused
and cut off, Redis restarts and fails over, messages are slow or poison. Then the oracle looks at
what is in the streams and at what everybody wrote down. With `--plants` every round has a bug
planted in its processes, and it must be found.
"""

import sys

from tests.dispatch.chaos.plan import THEMES, Plan
from tests.dispatch.chaos.planted import PLANTS
from tests.dispatch.chaos.report import RoundResult, is_late, round_text, show_table
from tests.dispatch.chaos.rounds import Rounds
from tests.kit.rounds import arguments, look_for, print_json, show_round, workplace
from tests.kit.verdict import Findings

PLANT_PATIENCE_S = 4.0
PLANT_TRIES = 3
LATE_SHARE_MAX = 0.02
"""Take-overs that may be late for the machine's sake: it is shared, and a standby must run to take
over. All of them are stated."""


def late_findings(rounds: list[RoundResult]) -> str:
    """Return what is wrong with the take-overs of a whole run, or nothing."""
    taken = [each for said in rounds for each in said.verdict.take_overs]
    late = sum(map(is_late, taken))
    if late > max(1, LATE_SHARE_MAX * len(taken)):
        return f"{late} of {len(taken)} take-overs were late"
    return ""


def main() -> int:
    """Run what is asked for; the result says whether something was found."""
    parser = arguments(__doc__, PLANTS)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--source-kind", choices=["stream", "pubsub"], default="stream")
    parser.add_argument("--theme", choices=sorted(set(THEMES)), default="", help="only this one")
    said = parser.parse_args()
    with workplace(said) as (console, folder), Rounds(folder) as rounds:

        def play(name: str, attempt: int) -> tuple[Findings, float]:
            plan = PLANTS[name].plan(said.seed + attempt)
            played = rounds.play(plan, plant=name, patience_s=PLANT_PATIENCE_S)
            for late in filter(is_late, played.verdict.take_overs):
                played.verdict.findings.add("late take-over", str(late))
            return played.verdict.findings, played.seconds

        if said.plants or said.plant:
            names = [said.plant] if said.plant else list(PLANTS)
            found = look_for(PLANTS, names, play, tries=PLANT_TRIES, console=console)
            print_json(said, found)
            return sum(not each for each in found.values())
        results: list[RoundResult] = []
        for number in range(said.first, said.first + said.rounds):
            plan = Plan.of(said.seed, number, said.source_kind, theme=said.theme)
            results.append(rounds.play(plan))
            show_round(console, round_text(results[-1]), results[-1].verdict.findings)
        show_table(console, results)
        late = late_findings(results)
        if late:
            console.print(f"Found: {late}.", highlight=False)
        print_json(said, [each.as_json() for each in results])
        return min(100, sum(bool(each.verdict.findings) for each in results) + bool(late))


if __name__ == "__main__":
    sys.exit(main())
