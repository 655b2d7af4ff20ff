"""Tells the acts of the demo to people: what was done, and what came of it."""

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import assert_never

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import waterclock
from waterclock.cli.terminal import due_text, one_line, table, time_text
from waterclock.cli.tour import (
    PROMISE_HOURS,
    Act,
    Acts,
    Crashed,
    Promised,
    Published,
    Repeated,
    Rotted,
)

BAR_CHARS = 32
INDENT = 3


class Narrator:
    """Tells one demo as it goes."""

    def __init__(self, out: Console, folder: Path) -> None:
        self._out = out
        self._folder = folder
        self._number = 0

    def begin(self) -> None:
        """Say what this is, and where."""
        self._out.print(
            f"Waterclock {waterclock.__version__}: a log that keeps its word", style="bold"
        )
        self._out.print(f"All of this happens in {self._folder}", soft_wrap=True)

    def tell(self, act: Act) -> None:
        """Tell an act that is over."""
        match act:
            case Published():
                self._published(act)
            case Repeated():
                self._repeated(act)
            case Promised():
                self._promised(act)
            case Crashed():
                self._crashed(act)
            case Rotted():
                self._rotted(act)
            case _:
                assert_never(act)

    def _published(self, act: Published) -> None:
        self._title("Publish")
        self._say(
            f"{act.messages:,} messages, made beforehand, in {act.batches} batches; each fsynced"
            " before it was acknowledged."
        )
        rate = act.messages / act.seconds
        self._result(
            f"{float(f'{rate:.3g}'):,.0f} messages/s",
            f"{act.batch_ms:.1f} ms a batch (median), on this disk and as busy as it is",
            is_good=True,
        )

    def _repeated(self, act: Repeated) -> None:
        self._title("Publish the same again, as a producer does that heard no answer")
        self._say(
            f"{act.messages:,} of these ids were sent a second time; {act.same_offsets:,} were"
            " answered with their first offset."
        )
        self._result(f"{act.written:,} written twice", is_good=act.written == 0)

    def _promised(self, act: Promised) -> None:
        self._title("Promise messages for later")
        self._say(f"{act.messages:,} reservations, in the same log until they are due. The next:")
        now_ms = time.time_ns() // 1_000_000
        lines = table(self._out, ">offset", "due", "")
        for promise in act.soonest:
            due = time_text(promise.due_ms)
            lines.add_row(f"{promise.offset:,}", due, due_text(promise.due_ms, now_ms))
        self._show(lines)
        self._say("By the hour from now:")
        self._show(self._histogram(act.per_hour))

    def _histogram(self, per_hour: list[int]) -> Table:
        bar = "█" if self._out.encoding.startswith("utf") else "#"
        bars = Table.grid(padding=(0, 1))
        for hour, count in enumerate(per_hour):
            length = round(BAR_CHARS * count / max(per_hour))
            bars.add_row(
                Text(f"{hour:>2}-{hour + 1:<2} h", style="dim"),
                Text(bar * length, style="cyan"),
                Text(str(count)),
            )
        assert len(per_hour) == PROMISE_HOURS
        return bars

    def _crashed(self, act: Crashed) -> None:
        self._title("Kill a writer with SIGKILL")
        self._say(
            "Another process published to this log, reported every batch that was acknowledged, and"
            " was killed at its work."
        )
        lines = Table.grid(padding=(0, 2))
        for count, what in (
            (f"{act.acknowledged:,}", "messages it had acknowledged"),
            (f"{act.found:,}", f"of them found, reopening the log in {act.reopen_ms:.0f} ms"),
            (f"{act.unacknowledged:,}", "more found, which it had no time left to acknowledge"),
        ):
            lines.add_row(Text(count, justify="right"), what)
        self._show(lines)
        self._result(
            f"{act.lost:,} lost",
            f"{act.promises:,} promises still open",
            is_good=act.lost == 0,
        )
        limit = "A kill takes the process, not the machine; `make sim` simulates power cuts."
        self._show(Text(limit, style="dim"))

    def _rotted(self, act: Rotted) -> None:
        self._title("Flip one bit")
        self._say(
            f"In a copy of the log, one bit of {act.file} was flipped, at byte {act.position:,}."
        )
        for damage in act.found:
            self._say(f"Found: {one_line(str(damage))}.")
        self._say(
            f"Reading the copy gave {act.served:,} messages as they were written and refused"
            f" {act.refused:,}."
        )
        self._result(
            f"{act.wrong:,} served wrong",
            "nothing deleted" if act.is_unchanged else "FILES WERE CHANGED",
            is_good=act.wrong == 0 and act.is_unchanged and act.is_found,
        )

    def end(self, acts: Acts, seconds: float) -> None:
        """Say how it ended, and what to type next."""
        self._out.print()
        broken = acts.broken()
        if broken:
            self._out.print(f"NOT KEPT: {'; '.join(broken)}", style="bold red")
        else:
            self._out.print(f"Every promise was kept, in {seconds:.1f} s. Next:", style="bold")
        called = program()
        path = shlex.quote(str(self._folder))
        lines = [
            (f"{called} log show {path}/log --from -5", "the end of that log"),
            (f"{called} log check {path}/damaged", "find the flipped bit yourself"),
        ]
        if Path("Makefile").exists():
            lines += [
                ("make test", "everything CI runs"),
                ("make bench-log", "how fast the log is"),
            ]
        lines.append((f"rm -r {path}", "clean up"))
        width = max(len(line) for line, _ in lines)
        for line, why in lines:
            command = Text(f"   {line:<{width}}  ", style="cyan").append(f"# {why}", style="dim")
            self._out.print(command, soft_wrap=True)

    def _title(self, text: str) -> None:
        self._number += 1
        self._out.print()
        self._out.print(Text(f"{self._number}  ", style="bold cyan").append(text, style="bold"))

    def _say(self, text: str) -> None:
        self._show(Text(text))

    def _result(self, verdict: str, *besides: str, is_good: bool) -> None:
        line = Text(verdict, style="bold green" if is_good else "bold red")
        for fact in besides:
            line.append(f", {fact}", style="default not bold")
        self._show(line)

    def _show(self, what: Text | Table) -> None:
        self._out.print(Padding(what, (0, 0, 0, INDENT), expand=False))


def program() -> str:
    """Return how this program can be called again from here."""
    found = shutil.which(sys.argv[0])
    if found is not None and Path(found).name == "waterclock":
        return "waterclock" if shutil.which("waterclock") == found else shlex.quote(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m waterclock"
