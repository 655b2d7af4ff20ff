"""What is told of rounds: a line as each ends, a table of all, or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.burrow.chaos.oracle import RESUME_S, Verdict
from tests.burrow.chaos.plan import SESSION_MS, Plan, StepKind

COUNTED = ("messages", "failures", "dead letters", "repeats", "overlaps", "commits", "maps")


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round that was judged."""

    plan: Plan
    verdict: Verdict
    seconds: float

    def as_json(self) -> dict[str, object]:
        plan, verdict = self.plan, self.verdict
        return {
            "seed": plan.seed,
            "kind": plan.kind,
            "assignor": plan.assignor,
            "order": plan.order,
            "is_async": plan.is_async,
            "seconds": round(self.seconds, 1),
            "resume_s": round(verdict.resume_s, 2),
            **verdict.as_json(),
        }


def faults_text(verdict: Verdict) -> str:
    """Return what was done, and how often."""
    counts = verdict.counts
    return ", ".join(f"{act.value} {counts[act.value]}" for act in StepKind if counts[act.value])


def round_text(said: RoundResult) -> str:
    """Return what a round was, in a line."""
    plan = said.plan
    text = f"seed {plan.seed} {plan.kind} {plan.assignor} {plan.order}"
    return f"{text}, {said.seconds:.0f} s: {faults_text(said.verdict)}"


def show_table(console: Console, rounds: Sequence[RoundResult]) -> None:
    """Print all rounds, and their sums."""
    table = Table(title="Chaos")
    for name in ("seed", "round", *COUNTED, "faults", "resume s", "found"):
        table.add_column(name, justify="left" if name in ("round", "faults") else "right")
    for said in rounds:
        plan, verdict = said.plan, said.verdict
        counts = [f"{verdict.counts[name]:,}" for name in COUNTED]
        ends = [faults_text(verdict), f"{verdict.resume_s:.1f}", verdict.findings.summary or "-"]
        kind = f"{plan.kind} {plan.assignor} {plan.order}"
        table.add_row(str(plan.seed), kind, *counts, *ends)
    sums = [f"{sum(said.verdict.counts[name] for said in rounds):,}" for name in COUNTED]
    worst = max((said.verdict.resume_s for said in rounds), default=0.0)
    bad = sum(bool(said.verdict.findings) for said in rounds)
    table.add_section()
    table.add_row("all", "", *sums, "", f"{worst:.1f}", f"{bad} of {len(rounds)}")
    console.print(table)
    console.print(
        f"Progress: every partition goes on within {RESUME_S:.0f} s after the last fault, Kafka's"
        f" session timeout of {SESSION_MS / 1000:.0f} s included; the longest took {worst:.1f} s."
    )
