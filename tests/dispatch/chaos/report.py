"""What is told of rounds: a line as each ends, a table of all by theme, or JSON."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.dispatch.chaos.oracle import TakeOver, Verdict
from tests.dispatch.chaos.plan import Fault, Plan

SPARE_S = 0.5
"""A take-over is in time if it needs no longer than the lease and this."""
SUMS = (
    "published", "unsure", "written", "dead-lettered", "bystanders", "redelivered", "repeats",
    "epochs", "refused_frames", "refused_writes", "stale", "gaps", "lost in a gap",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round that was judged."""

    plan: Plan
    verdict: Verdict
    seconds: float

    def as_json(self) -> dict[str, object]:
        """Return all that is known of it."""
        plan, verdict = self.plan, self.verdict
        return {
            "seed": plan.seed,
            "round": plan.number,
            "source_kind": plan.source_kind,
            "theme": plan.theme,
            "lease_s": plan.lease_ms / 1_000,
            "seconds": round(self.seconds, 2),
            "settle_s": round(verdict.settle_s, 2),
            "take_over_s": [round(each.seconds, 3) for each in verdict.take_overs],
            **verdict.as_json(),
        }


def faults_of(counts: Counter[str]) -> str:
    """Return what was done, and how often."""
    return ", ".join(f"{each.value} {counts[each.value]}" for each in Fault if counts[each.value])


def is_late(take_over: TakeOver) -> bool:
    """Say whether it took longer than it may."""
    return take_over.seconds > take_over.lease_s + SPARE_S


def round_text(said: RoundResult) -> str:
    """Return what a round was, in a line."""
    plan, verdict = said.plan, said.verdict
    taken = "".join(f", take-over {each.seconds:.2f} s" for each in verdict.take_overs)
    faults = faults_of(verdict.counts) or "poison only"
    lease = f"lease {plan.lease_ms / 1_000:g} s"
    return f"round {plan.number} {plan.theme}, {lease}, {said.seconds:.1f} s: {faults}{taken}"


def show_table(console: Console, rounds: Sequence[RoundResult]) -> None:
    """Print all rounds by theme, their sums, and how long take-overs took."""
    table = Table(title=f"{len(rounds)} rounds, source {rounds[0].plan.source_kind}")
    columns = ("theme", "rounds", *SUMS, "settled after s", "found")
    for name in columns:
        is_theme = name == "theme"
        table.add_column(
            name.replace("_", " "), justify="left" if is_theme else "right", no_wrap=is_theme
        )
    by_theme: dict[str, list[RoundResult]] = defaultdict(list)
    for said in rounds:
        by_theme[said.plan.theme].append(said)
    for theme, theirs in sorted(by_theme.items()):
        table.add_row(theme, *_row(theirs))
    table.add_section()
    table.add_row("all", *_row(rounds))
    console.print(table)
    counts: Counter[str] = Counter()
    for said in rounds:
        counts += said.verdict.counts
    console.print(f"Faults: {faults_of(counts)}.", soft_wrap=True, highlight=False)
    for line in take_over_lines(rounds):
        console.print(line, soft_wrap=True, highlight=False)


def _row(rounds: Sequence[RoundResult]) -> list[str]:
    sums = [f"{sum(said.verdict.counts[name] for said in rounds):,}" for name in SUMS]
    settled = max((said.verdict.settle_s for said in rounds), default=0.0)
    found = sum(bool(said.verdict.findings) for said in rounds)
    return [str(len(rounds)), *sums, f"{settled:.1f}", str(found) if found else "-"]


def take_over_lines(rounds: Iterable[RoundResult]) -> list[str]:
    """Say how long take-overs took, by lease and by what happened to the leader."""
    groups: dict[tuple[str, float], list[TakeOver]] = defaultdict(list)
    for said in rounds:
        for each in said.verdict.take_overs:
            groups[each.fault, each.lease_s].append(each)
    lines = []
    for (fault, lease_s), group in sorted(groups.items()):
        seconds = sorted(each.seconds for each in group)
        late = sum(map(is_late, group))
        lines.append(
            f"Take-over, {fault}, lease {lease_s:g} s: {len(group)} times, median"
            f" {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s, {late} longer than"
            f" {lease_s + SPARE_S:g} s."
        )
    return lines
