"""What every benchmark does around its cases: rounds, a table for people, one line for machines.

A case is measured in rounds that alternate with those of the other cases, so that a slow minute of
a shared machine hits all of them; its value is the median, its spread the least and the greatest.
The last line on stdout is the JSON object described in the benchmarks' design; all else is for
people, and progress goes to stderr. `BENCH_SCALE` shrinks every amount (0.001 for a smoke run);
bars are set for scale 1 and judged there only.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.machine import ROOT, Facts, source_digest, version
from benchmarks.plots import Mark, bar_chart

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
SMOKE_SCALE = 0.01
BUSY_LOAD = 1.0
"""More than this before a run begins is somebody else's work."""
HEADINGS = ("case", "value", "unit", "least .. greatest", "bar", "", "note")

T = TypeVar("T")


def scale() -> float:
    """Give the factor all amounts are multiplied by."""
    return float(os.environ.get("BENCH_SCALE") or 1)


def scaled(count: int, *, least: int = 1) -> int:
    """Shrink an amount to the scale of this run."""
    return max(least, round(count * scale()))


def whole_batches(count: int, *, batch: int = 1_000) -> int:
    """Shrink a number of messages to the scale of this run, and to whole batches, at least two."""
    return -(-scaled(count, least=2 * batch) // batch) * batch


def is_smoke() -> bool:
    """Tell whether this run only proves that the benchmark works."""
    return scale() < SMOKE_SCALE


def rounds_of(count: int) -> int:
    """Give the number of rounds: as asked, but one in a smoke run, whose numbers mean nothing."""
    return 1 if is_smoke() else count


@dataclass(frozen=True, slots=True)
class Bar:
    """What a case must reach, or stay below."""

    value: float
    is_floor: bool = True

    def is_cleared(self, value: float) -> bool:
        return value >= self.value if self.is_floor else value <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.is_floor else '≤'} {shown(self.value)}"


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one case, round by round."""

    case: str
    samples: list[float]
    unit: str
    bar: Bar | None = None
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> str:
        if len(self.samples) == 1:
            return "one round"
        return f"{shown(min(self.samples))} .. {shown(max(self.samples))}"

    def verdict(self) -> str:
        """Say whether the bar was cleared, if there is one and this is a run to judge by."""
        if self.bar is None or scale() != 1:
            return ""
        return "cleared" if self.bar.is_cleared(self.value) else "MISSED"


@dataclass(slots=True)
class Report:
    """All results of one benchmark."""

    bench: str
    machine: Facts
    results: list[Result] = field(default_factory=list)
    peers: list[Result] = field(default_factory=list)
    """Named `<peer>_<case>`; a peer that is not on this machine is left out and noted."""
    ratios: dict[str, float] = field(default_factory=dict)
    ratio_bars: dict[str, Bar] = field(default_factory=dict)
    """What a ratio must reach, or stay below."""
    notes: list[str] = field(default_factory=list)
    version: str = field(default_factory=version)
    source: str = field(default_factory=source_digest)

    def finish(self) -> None:
        """Note what makes this run less than it seems. Call it when the last case is measured."""
        self.machine["load_1m_after"] = round(os.getloadavg()[0], 2)
        if float(self.machine.get("load_1m", 0)) > BUSY_LOAD:
            self.notes.append("Others kept the machine busy: compare nothing with this run.")
        if source_digest() != self.source:
            self.notes.append("The source changed during the run: the cases are of different code.")
        if scale() == 1:
            self.notes += self._judgements()

    def _judgements(self) -> Iterator[str]:
        """Say what is wrong with the ratios, if this is a run to judge by."""
        for name, bar in self.ratio_bars.items():
            if name not in self.ratios:
                yield f"Not judged, for its peer did not run: {name} must be {bar}."
            elif not bar.is_cleared(self.ratios[name]):
                yield f"MISSED: {name} must be {bar}."

    def add(
        self, case: str, samples: list[float], unit: str, *, bar: Bar | None = None, note: str = ""
    ) -> None:
        """Take in what was measured of one of our cases."""
        self.results.append(Result(case, samples, unit, bar, note))

    def as_json(self) -> str:
        """Give the line for machines."""
        return json.dumps(
            {
                "bench": self.bench,
                "results": _plain(self.results),
                "peers": _plain(self.peers),
                "ratios": {name: _rounded(ratio) for name, ratio in self.ratios.items()},
                "machine": self.machine,
                "version": self.version,
            }
        )

    def publish(self) -> None:
        """Print the table and, last, the line for machines."""
        # Not above: the processes a benchmark starts would load it in vain.
        from benchmarks.display import print_table

        ratios = [f"Ratio: {ratio}" for ratio in self.shown_ratios()]
        footers = [*ratios, *(f"Note: {note}" for note in self.notes), self.about_machine()]
        print_table(f"{self.bench}: median of rounds", HEADINGS, self.rows(), footers)
        sys.stdout.flush()
        print(self.as_json(), flush=True)

    def about_machine(self) -> str:
        """Say on what this ran."""
        return ", ".join(f"{fact} {value}" for fact, value in self.machine.items())

    def shown_ratios(self) -> list[str]:
        """Give the comparisons for people, each with its bar."""
        return [
            f"{name} {ratio:.3g}" + (f" ({bar})" if (bar := self.ratio_bars.get(name)) else "")
            for name, ratio in self.ratios.items()
        ]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Give the table, a cell for each of `HEADINGS`."""
        for result in (*self.results, *self.peers):
            bar = "" if result.bar is None else str(result.bar)
            value, verdict = shown(result.value), result.verdict()
            yield result.case, value, result.unit, result.spread, bar, verdict, result.note

    def record(self, command: str) -> None:
        """Write this run into RESULTS.md, in the place of the last one of the same benchmark."""
        lines = [f"## {self.bench}", "", f"`{command}` at `{self.version}`.", ""]
        lines += [" | ".join(("", *HEADINGS, "")).strip(), "|" + "---|" * len(HEADINGS)]
        lines += [" | ".join(("", *row, "")).strip() for row in self.rows()]
        lines += ["", *(f"- {note}" for note in self.notes)]
        lines += [f"- Ratios, ours by theirs: {', '.join(self.shown_ratios())}."] * bool(
            self.ratios
        )
        lines += [f"- Machine: {self.about_machine()}."]
        text = RESULTS.read_text() if RESULTS.exists() else "# Results of the last honest run\n"
        RESULTS.write_text(with_section(text, self.bench, "\n".join(map(wrapped, lines))))

    def plot(self, name: str, title: str, cases: Mapping[str, str]) -> Path:
        """Draw some cases (name and label), all of one unit, as an SVG beside RESULTS.md."""
        by_case = {result.case: result for result in (*self.results, *self.peers)}
        chosen = [(label, by_case[case]) for case, label in cases.items()]
        marks = [Mark(label, r.value, min(r.samples), max(r.samples)) for label, r in chosen]
        file = RESULTS.with_name(f"{name}.svg")
        file.write_text(bar_chart(title, marks, unit=chosen[0][1].unit, shown=shown))
        return file


def with_section(text: str, bench: str, section: str) -> str:
    """Put a section into a page, in the place of the one of the same benchmark or at the end."""
    pattern = re.compile(rf"^## {re.escape(bench)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if not pattern.search(text):
        return f"{text.rstrip()}\n\n{section}\n"
    # A blank line goes before what follows.
    return pattern.sub(lambda _: f"{section}\n\n", text).rstrip() + "\n"


def wrapped(line: str) -> str:
    """Break a paragraph or an item of a page at 100 columns; leave rows of tables and headings."""
    if line.startswith(("|", "#", "!")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def shown(value: float) -> str:
    """Write a number for people: three digits, thousands and millions as K and M."""
    for size, letter in ((1e6, " M"), (1e3, " K")):
        if abs(value) >= size:
            return (
                f"{value / size:.4g}{letter}"
                if value < 100 * size
                else f"{value / size:.0f}{letter}"
            )
    return f"{value:.3g}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _plain(results: list[Result]) -> dict[str, dict[str, float | str]]:
    return {r.case: {"value": _rounded(r.value), "unit": r.unit} for r in results}


# Running

Tick = Callable[[str], None]


def alternate(
    cases: Mapping[str, Callable[[], T]], *, rounds: int, tick: Tick
) -> dict[str, list[T]]:
    """Run each case once per round, one after the other, and give what each returned."""
    samples: dict[str, list[T]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, run in cases.items():
            tick(case)
            samples[case].append(run())
    return samples


def run_child(module: str, *args: object) -> dict[str, Any]:
    """Run `python -m <module> --child <args>` and give the JSON object it prints last."""
    command = child_command(module, *args)
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def child_command(module: str, *args: object) -> list[str]:
    """Give the command line of a process of this benchmark."""
    return [sys.executable, "-m", module, "--child", *map(str, args)]
