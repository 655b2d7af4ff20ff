"""What a round left behind, for the oracle: what was published, what came of it, who led when."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.dispatch.chaos.plan import Plan, Step

_NUMBER = re.compile(rb'"n": (\d+)')


@dataclass(frozen=True, slots=True)
class Published:
    """A message that was sent, and whether Redis answered."""

    n: int
    kind: str
    from_s: float
    to_s: float
    is_sure: bool
    """False: the connection broke before the answer; it may be there, and is not sent again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an output stream."""

    n: int
    epoch: int
    by: str
    stream: int = 0
    at_ms: int = 0
    """When it was written, by the clock of Redis."""


@dataclass(frozen=True, slots=True)
class Letter:
    """An entry of the dead stream."""

    n: int
    reason: str
    deliveries: int


@dataclass(frozen=True, slots=True)
class Performed:
    """A fault, from when to when it really was, on the clock of all processes."""

    step: Step
    from_s: float
    to_s: float
    epoch: int = 0
    """Whose leader it hit, if it hit one."""
    target: str = ""


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """Somebody held the lock with an epoch, seen first at a time."""

    at_s: float
    epoch: int
    name: str


@dataclass(slots=True)
class History:
    """All of a round."""

    plan: Plan
    published: list[Published] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    """In the order of their streams, one stream after the other."""
    dead_letters: list[Letter] = field(default_factory=list)
    performed: list[Performed] = field(default_factory=list)
    leader_epochs: list[LeaderEpoch] = field(default_factory=list)
    journals: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By process: what it accepted and counted."""
    ended_s: float = 0.0
    """When nothing was left to be done, or patience ended."""
    is_settled: bool = True
    seconds: float = 0.0


def number_in(body: bytes) -> int:
    """Return a message's number, also of one that is not JSON."""
    found = _NUMBER.search(body)
    return int(found[1]) if found else -1


def body_of(n: int, kind: str) -> bytes:
    """Return the bytes of a message."""
    if kind == "spoiled":
        return b'{"n": %d, ' % n
    return json.dumps({"n": n, "do": kind} if kind else {"n": n}).encode()


def read_journals(paths: Iterable[Path]) -> dict[str, list[dict[str, Any]]]:
    """Return all journals, by the names of the processes."""
    return {path.stem: [json.loads(line) for line in _whole_lines(path)] for path in paths}


def _whole_lines(path: Path) -> Sequence[bytes]:
    return path.read_bytes().split(b"\n")[:-1]
