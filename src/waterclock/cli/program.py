"""How this program is called, and lines for a person to type next."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text


def program() -> str:
    """Return how this program can be called again from here."""
    found = shutil.which(sys.argv[0])
    if found is not None and Path(found).name == "waterclock":
        return "waterclock" if shutil.which("waterclock") == found else shlex.quote(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m waterclock"


def next_lines(out: Console, lines: Sequence[tuple[str, str]]) -> None:
    """Show commands to type, each with what it is for."""
    width = max(len(line) for line, _ in lines)
    for line, why in lines:
        command = Text(f"   {line:<{width}}  ", style="cyan").append(f"# {why}", style="dim")
        out.print(command, soft_wrap=True)
