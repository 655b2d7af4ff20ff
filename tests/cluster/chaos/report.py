"""What is told of rounds: a line as each ends, a table of all by theme, or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.cluster.chaos.plan import Fault, Plan
from tests.cluster.chaos.program import by_theme, described, heading
from tests.kit.verdict import Verdict

SUMS = (
    "sent", "acknowledged", "unsure", "received", "stored", "broken polls", "lost with a node",
    "lost on the way",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round that was judged."""

    plan: Plan
    verdict: Verdict
    seconds: float
    heal_s: float | None

    def as_json(self) -> dict[str, object]:
        """Return all that is known of it."""
        return {
            **described(self.plan, self.seconds),
            "heal_s": None if self.heal_s is None else round(self.heal_s, 2),
            **self.verdict.as_json(),
        }


def round_text(said: RoundResult) -> str:
    """Return what a round was, in a line."""
    healed = "never" if said.heal_s is None else f"after {said.heal_s:.1f} s"
    latest = f"latest answer {said.verdict.counts['latest answer ms']} ms"
    return f"{heading(said, Fault, SUMS)}; {latest}; healed {healed}"


def show_table(console: Console, rounds: Sequence[RoundResult]) -> None:
    """Print all rounds by theme, and their sums."""
    table = Table(title=f"{len(rounds)} rounds")
    for name in ("theme", "rounds", *SUMS, "latest ms", "healed after s", "found"):
        is_theme = name == "theme"
        table.add_column(name, justify="left" if is_theme else "right", no_wrap=is_theme)
    for theme, theirs in by_theme(rounds):
        table.add_row(theme, *_row(theirs))
    table.add_section()
    table.add_row("all", *_row(rounds))
    console.print(table)


def _row(rounds: Sequence[RoundResult]) -> list[str]:
    sums = [f"{sum(said.verdict.counts[name] for said in rounds):,}" for name in SUMS]
    latest = max((said.verdict.counts["latest answer ms"] for said in rounds), default=0)
    healed = max((said.heal_s or 0.0 for said in rounds), default=0.0)
    found = sum(bool(said.verdict.findings) for said in rounds)
    return [str(len(rounds)), *sums, f"{latest:,}", f"{healed:.1f}", str(found) if found else "-"]
