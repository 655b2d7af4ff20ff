"""What the two programs of chaos share, of streams and of topics: arguments, playing rounds for so
many or for so long, looking for planted bugs, and what is told of rounds."""

import argparse
import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import uvloop
from rich.console import Console

from tests.kit.rounds import Plant, arguments, look_for, print_json, show_round, workplace
from tests.kit.verdict import Findings, Verdict


class Result(Protocol):
    """A round that was judged."""

    @property
    def plan(self) -> Any: ...

    @property
    def verdict(self) -> Verdict: ...

    @property
    def seconds(self) -> float: ...

    def as_json(self) -> dict[str, object]: ...


R = TypeVar("R", bound=Result)


class Node(Protocol):
    """A process that writes a log."""

    name: str

    def bugs(self) -> Iterable[str]: ...


class NewBugs:
    """What logs say of things that nobody planned, each line once."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def of(self, nodes: Iterable[Node]) -> list[str]:
        """Return what is new in the logs of nodes."""
        found = {(node.name, line) for node in nodes for line in node.bugs()}
        new = sorted(found - self._seen)
        self._seen |= found
        return [f"{name}: {line[:300]}" for name, line in new]


def parser_of(
    text: str, plants: Mapping[str, Plant], themes: Sequence[str], *, rounds: int
) -> argparse.ArgumentParser:
    """Return what both programs take."""
    parser = arguments(text, plants)
    parser.set_defaults(rounds=rounds)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long")
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--theme", choices=sorted(set(themes)), default="", help="only this one")
    return parser


async def play_rounds(
    said: argparse.Namespace,
    play: Callable[[int], Awaitable[R]],
    text_of: Callable[[R], str],
    console: Console,
) -> list[R]:
    """Play rounds by their number: so many, and as many as there is time for."""
    results: list[R] = []
    end_s = time.monotonic() + said.minutes * 60
    number = said.first
    while number < said.first + said.rounds or time.monotonic() < end_s:
        results.append(await play(number))
        show_round(console, text_of(results[-1]), results[-1].verdict.findings)
        number += 1
    return results


def run_program(
    said: argparse.Namespace,
    plants: Mapping[str, Plant],
    *,
    tries: int,
    play: Callable[[argparse.Namespace, Path, Console], Awaitable[list[R]]],
    play_planted: Callable[[str, int, Path], Awaitable[R]],
    show: Callable[[Console, Sequence[R]], None],
) -> int:
    """Do what is asked for; the result says whether something was found, or a bug was not."""
    with (
        workplace(said) as (console, folder),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):

        def look(name: str, attempt: int) -> tuple[Findings, float]:
            place = folder / f"{name}-{attempt}"
            place.mkdir(parents=True)
            played = runner.run(_awaited(play_planted(name, said.seed + attempt, place)))
            return played.verdict.findings, played.seconds

        folder.mkdir(parents=True, exist_ok=True)
        if said.plants or said.plant:
            names = [said.plant] if said.plant else list(plants)
            found = look_for(plants, names, look, tries=tries, console=console)
            print_json(said, found)
            return sum(not each for each in found.values())
        results = runner.run(_awaited(play(said, folder, console)))
    show(console, results)
    print_json(said, [each.as_json() for each in results])
    return min(100, sum(bool(each.verdict.findings) for each in results))


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what


def by_theme(rounds: Sequence[R]) -> list[tuple[str, list[R]]]:
    """Return rounds by their theme, in order."""
    found: dict[str, list[R]] = defaultdict(list)
    for each in rounds:
        found[each.plan.theme].append(each)
    return sorted(found.items())


def heading(said: Result, faults: Iterable[Enum], sums: Iterable[str]) -> str:
    """Return what a round was: its theme, what was done, and how much of everything there was."""
    counts: Counter[str] = said.verdict.counts
    done = ", ".join(f"{each.value} {counts[each.value]}" for each in faults if counts[each.value])
    numbers = ", ".join(f"{name} {counts[name]}" for name in sums if counts[name])
    where = f"round {said.plan.number} {said.plan.theme}"
    return f"{where}, {said.seconds:.0f} s: {done}; {numbers}"


def described(plan: Any, seconds: float) -> dict[str, object]:
    """Return which round it was, for machines."""
    return {
        "seed": plan.seed,
        "round": plan.number,
        "theme": plan.theme,
        "seconds": round(seconds, 2),
    }
