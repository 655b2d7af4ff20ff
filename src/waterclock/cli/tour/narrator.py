"""Tells the acts of the demo to people: what was done, and what came of it."""

import shlex
import time
from pathlib import Path
from typing import assert_never

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import waterclock
from waterclock.cli.output.figures import bars, ms_text
from waterclock.cli.output.terminal import counted, due_text, one_line, table, time_text
from waterclock.cli.program import next_lines, program
from waterclock.cli.tour.acts import (
    Act,
    Acts,
    Crashed,
    Fired,
    Promised,
    Redriven,
    Replayed,
    Retried,
    Rotted,
    Started,
    Stopped,
)

INDENT = 3
WIDTH_MAX = 100
"""Of what is to be read; a wide terminal and a pipe do not make it easier."""


class Narrator:
    """Tells one demo as it goes."""

    def __init__(self, out: Console, folder: Path) -> None:
        self._out = out
        self._folder = folder
        self._number = 0

    def begin(self) -> None:
        """Say what this is, and where."""
        self._out.print(
            f"Waterclock {waterclock.__version__}: a stream that keeps time, and its word",
            style="bold",
        )
        self._out.print(f"All of this happens in {self._folder}", soft_wrap=True)

    def tell(self, act: Act) -> None:
        """Tell an act that is over."""
        match act:
            case Started():
                self._started(act)
            case Promised():
                self._promised(act)
            case Fired():
                self._fired(act)
            case Retried():
                self._retried(act)
            case Redriven():
                self._redriven(act)
            case Crashed():
                self._crashed(act)
            case Replayed():
                self._replayed(act)
            case Stopped():
                self._stopped(act)
            case Rotted():
                self._rotted(act)
            case _:
                assert_never(act)

    def _started(self, act: Started) -> None:
        self._title("Start a node")
        self._say(
            f"`waterclock up` in a process of its own: gRPC at {act.address}, HTTP at"
            f" {act.http_address}."
        )
        self._result(f"ready in {ms_text(act.ready_ms)}", is_good=True)

    def _promised(self, act: Promised) -> None:
        self._title("Publish messages for later, cancel some, move some")
        self._say(
            f"{act.messages:,} messages in {ms_text(act.publish_ms)}: some due within seconds, most"
            f" over the next {len(act.per_hour)} hours. {act.cancelled:,} were cancelled,"
            f" {act.moved:,} moved from hours to seconds. The next:"
        )
        now_ms = time.time_ns() // 1_000_000
        lines = table(self._out, "due", "", "key", "id")
        for pending in act.soonest:
            away = due_text(pending.due_ms, now_ms)
            lines.add_row(time_text(pending.due_ms), away, pending.key, pending.message_id)
        self._show(lines)
        self._say("By the hour from now:")
        hours = [(f"{hour}-{hour + 1} h", count) for hour, count in enumerate(act.per_hour)]
        self._show(bars(self._out, hours))
        self._result(
            f"{act.scheduled:,} scheduled", "all listed and counted", is_good=_is_kept(act)
        )

    def _fired(self, act: Fired) -> None:
        self._title("See them come")
        self._say(
            f"{act.came:,} of {act.expected:,} came. From the due time to the consumer's hand (a"
            f" due time is rounded up to {act.tick_ms} ms):"
        )
        self._show(bars(self._out, act.late_counts))
        if act.late_ms:
            spread = ", ".join(f"{name} {ms_text(ms)}" for name, ms in act.late_ms.items())
            self._say(f"{spread} late.")
        self._result(
            f"{act.early:,} early",
            f"{act.cancelled_came:,} after their cancel",
            f"{act.expected - act.came:,} missing",
            is_good=_is_kept(act),
        )

    def _retried(self, act: Retried) -> None:
        self._title("Fail, and try again")
        waits = ", then ".join(ms_text(ms) for ms in act.wait_ms)
        self._say(
            f"Of {act.messages:,} payments, {act.done_at_once:,} succeeded at once and"
            f" {act.done_later:,} after a failure. {act.failing:,} failed every time: after"
            f" {waits} they were tried again, and given up after {act.attempts} attempts."
        )
        lost = act.messages - act.done_at_once - act.done_later - act.dead
        self._result(f"{act.dead:,} dead letters", f"{lost:,} lost", is_good=_is_kept(act))

    def _redriven(self, act: Redriven) -> None:
        self._title("Mend the consumer, and redrive the dead letters")
        lines = table(self._out, ">place", "key", "value", "reason", ">attempts")
        for letter in act.letters:
            lines.add_row(
                letter.place,
                letter.key,
                letter.value,
                one_line(letter.reason),
                str(letter.attempts),
            )
        self._show(lines)
        self._result(
            f"{act.done:,} of {len(act.letters):,} succeeded now",
            f"{counted(act.left, 'dead letter')} left",
            is_good=_is_kept(act),
        )

    def _crashed(self, act: Crashed) -> None:
        self._title("Kill the node with SIGKILL while it works, and start it again")
        self._say(
            "Publishers and a consumer were at it, one message in five for later. They went on"
            " as if nothing had happened; the client sent again what was not answered."
        )
        self._facts(
            (f"{act.acknowledged_before:,}", "messages acknowledged before the kill"),
            (f"{act.acknowledged - act.acknowledged_before:,}", "after it"),
            (f"{act.scheduled:,}", "of all were for later"),
            (f"{act.delivered:,}", "delivered"),
            (f"{act.again:,}", "delivered again, as their ack had not been saved"),
            (
                ms_text(act.silence_ms),
                f"without an answer, {ms_text(act.ready_ms)} of it for the new start",
            ),
        )
        self._result(f"{act.lost:,} lost", f"{act.early:,} early", is_good=_is_kept(act))
        limit = "A kill takes the process, not the machine; `make sim` simulates power cuts."
        self._show(Text(limit, style="dim"))

    def _replayed(self, act: Replayed) -> None:
        self._title("Replay all of it")
        self._say(
            f"A replay with a name, broken off after {act.broken_off_at:,} messages, went on where"
            f" it was left, reading {act.again:,} again; {act.seconds:.2f} s in all."
        )
        self._result(
            f"{act.found:,} of {act.expected:,} acknowledged messages found",
            f"{act.stored_twice:,} stored twice",
            is_good=_is_kept(act),
        )

    def _stopped(self, act: Stopped) -> None:
        self._title("Stop it in good order")
        self._result(
            f"exit code {act.exit_code}", f"in {ms_text(act.stop_ms)}", is_good=_is_kept(act)
        )

    def _rotted(self, act: Rotted) -> None:
        self._title("Flip one bit")
        self._say(
            f"In a copy of a log, one bit of {act.file} was flipped, at byte {act.position:,}."
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
            is_good=_is_kept(act),
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
            (f"{called} up --data {path}/node", "start that node again"),
            (f"{called} schedule list", "what it still has to do"),
            (f"{called} log check {path}/damaged", "find the flipped bit yourself"),
        ]
        if Path("Makefile").exists():
            lines += [
                ("make test", "everything CI runs"),
                ("make bench", "how fast it is, beside others"),
            ]
        lines.append((f"rm -r {path}", "clean up"))
        next_lines(self._out, lines)

    def _title(self, text: str) -> None:
        self._number += 1
        self._out.print()
        self._out.print(Text(f"{self._number}  ", style="bold cyan").append(text, style="bold"))

    def _say(self, text: str) -> None:
        self._show(Text(text))

    def _facts(self, *facts: tuple[str, str]) -> None:
        lines = Table.grid(padding=(0, 2))
        for count, what in facts:
            lines.add_row(Text(count, justify="right"), what)
        self._show(lines)

    def _result(self, verdict: str, *besides: str, is_good: bool) -> None:
        line = Text(verdict, style="bold green" if is_good else "bold red")
        for fact in besides:
            line.append(f", {fact}", style="default not bold")
        self._show(line)

    def _show(self, what: Text | Table) -> None:
        padded = Padding(what, (0, 0, 0, INDENT), expand=False)
        self._out.print(padded, width=min(self._out.width, WIDTH_MAX), soft_wrap=False)


def _is_kept(act: Act) -> bool:
    return not any(act.broken())
