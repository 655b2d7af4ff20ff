"""Pages as a reader meets them: blocks of commands and programs, in their order.

A block that cannot be run unattended says so on the line above it, for every reader to see:
`<!-- not run: why -->`.
"""

import re
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple, get_args

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

Kind = Literal["sh", "python", "sql"]
DATA = frozenset({"text", "json", "toml", "yaml", ""})
"""Languages of blocks that nobody runs: what is printed, settings, drawings."""

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^(?:waterclock|curl|grpcurl|make|pip|python3?|redis-cli) ", re.MULTILINE)


class Block(NamedTuple):
    """Something to run."""

    line: int
    kind: str
    """One of `Kind`."""
    text: str
    printed: str | None
    """What the page says that it prints."""
    not_run: str | None
    """Why, if it is not."""


class Fence(NamedTuple):
    """Whatever stands between two lines of backticks."""

    line: int
    kind: str
    text: str
    not_run: str | None


def fences(text: str) -> list[Fence]:
    """Return all there are."""
    return [
        Fence(text[: each.start("text")].count("\n"), each["kind"], each["text"], each["why"])
        for each in _FENCE.finditer(text)
    ]


def blocks(text: str) -> list[Block]:
    """Return what there is to run on a page, in its order."""
    found: list[Block] = []
    everything = fences(text)
    for fence, after in zip_longest(everything, everything[1:]):
        if fence.kind in get_args(Kind):
            printed = after.text if after and after.kind == "text" else None
            found.append(Block(fence.line, fence.kind, fence.text, printed, fence.not_run))
    return found


def hidden_commands(text: str) -> list[int]:
    """Return the lines of blocks that look like commands and are not marked as such."""
    return [
        fence.line
        for fence in fences(text)
        if fence.kind not in get_args(Kind)
        and (fence.kind not in DATA or (not fence.kind and _COMMAND.search(fence.text)))
    ]
