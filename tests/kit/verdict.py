"""What the judge of a round of faults says: what must not be, by kind with a few examples of each,
and what was counted besides."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

EXAMPLES_MAX = 12
"""Of each kind; more of the same tell nothing new."""


class Findings(Counter[str]):
    """How often each kind of broken promise was found."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, example: str) -> None:
        """Note one."""
        self[kind] += 1
        if len(self.examples[kind]) < EXAMPLES_MAX:
            self.examples[kind].append(example)

    @property
    def summary(self) -> str:
        """Each kind and how often, in a line; empty if every promise was kept."""
        return ", ".join(f"{kind} {count}" for kind, count in sorted(self.items()))

    def __str__(self) -> str:
        lines = []
        for kind, examples in self.examples.items():
            lines += [f"{kind}: {self[kind]}", *(f"    {example}" for example in examples)]
        return "\n".join(lines) or "nothing found"


@dataclass
class Verdict:
    """What was found in a round, and what was counted."""

    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """Return both, for machines."""
        return {
            "counts": {name: count for name, count in self.counts.items() if count},
            "findings": dict(self.findings),
            "examples": dict(self.findings.examples),
        }
