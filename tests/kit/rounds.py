"""Programs that run rounds of faults: what each of them is asked, where it prints and keeps files,
and how it looks for planted bugs."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console

from tests.kit.verdict import Findings

WIDTH = 190


class Plant(Protocol):
    """A bug that can be planted."""

    @property
    def gives_away(self) -> frozenset[str]:
        """The findings that name it: one of them at least must be made."""
        ...


def arguments(text: str, plants: Mapping[str, Plant]) -> argparse.ArgumentParser:
    """Return what every program of rounds takes."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=list(plants), help="one bug: is it found?")
    parser.add_argument("--plants", action="store_true", help="all of them")
    parser.add_argument("--json", action="store_true", help="nothing else on the output")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and journals")
    return parser


@contextmanager
def workplace(said: argparse.Namespace) -> Iterator[tuple[Console, Path]]:
    """Lend a console, and a folder that is removed unless it is to be kept."""
    console = Console(stderr=said.json, width=None if sys.stdout.isatty() else WIDTH)
    if said.keep:
        yield console, said.keep
        return
    with tempfile.TemporaryDirectory(prefix="waterclock-chaos-") as folder:
        yield console, Path(folder)


def look_for(
    plants: Mapping[str, Plant],
    names: Sequence[str],
    play: Callable[[str, int], tuple[Findings, float]],
    *,
    tries: int,
    console: Console,
) -> dict[str, bool]:
    """Say of each planted bug whether it is found, by a finding that names it.

    `play(name, attempt)` plays a round with it, and returns what was found and the seconds.
    """
    found = {}
    for name in names:
        found[name] = False
        for attempt in range(tries):
            findings, seconds = play(name, attempt)
            found[name] = bool(plants[name].gives_away & set(findings))
            result = f"{'found' if found[name] else 'not found'} ({findings.summary})"
            text = f"{name}: {result}, try {attempt + 1}, {seconds:.0f} s"
            console.print(text, soft_wrap=True, highlight=False)
            if found[name]:
                break
    console.print(f"{sum(found.values())} of {len(found)} planted bugs found")
    return found


def show_round(console: Console, line: str, findings: Findings) -> None:
    """Print a line for a round, and what was found in it."""
    text = f"{line}: {findings.summary or 'every promise kept'}"
    console.print(text, soft_wrap=True, highlight=False)
    if findings:
        console.print(str(findings), soft_wrap=True, markup=False)


def print_json(said: argparse.Namespace, what: object) -> None:
    """Print what a machine has asked for."""
    if said.json:
        print(json.dumps(what, indent=1))
