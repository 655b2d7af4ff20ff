"""Prints the steps of the demo for people: what was done, and what came of it."""

import shlex
import time
from pathlib import Path
from typing import assert_never

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import waterclock
from demos.node.steps import (
    Crashed,
    Damaged,
    FailedOver,
    Fired,
    Redriven,
    Replayed,
    Retried,
    Scheduled,
    Started,
    Step,
    Steps,
    Stopped,
)
from waterclock.cli.output.figures import bars, ms_text
from waterclock.cli.output.terminal import (
    counted,
    due_text,
    next_lines,
    one_line,
    program,
    table,
    time_text,
)

INDENT = 3
WIDTH_MAX = 100
"""Of what is to be read; a wide terminal and a pipe do not make it easier."""


class Printer:
    """Prints one demo as it goes."""

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

    def print_step(self, step: Step) -> None:
        match step:
            case Started():
                self._started(step)
            case Scheduled():
                self._scheduled(step)
            case Fired():
                self._fired(step)
            case Retried():
                self._retried(step)
            case Redriven():
                self._redriven(step)
            case Crashed():
                self._crashed(step)
            case Replayed():
                self._replayed(step)
            case Stopped():
                self._stopped(step)
            case Damaged():
                self._damaged(step)
            case FailedOver():
                self._failed_over(step)
            case _:
                assert_never(step)

    def _started(self, step: Started) -> None:
        self._title("Start a node")
        self._say(
            f"`waterclock up` in a process of its own: gRPC at {step.address}, HTTP at"
            f" {step.http_address}."
        )
        self._result(f"ready in {ms_text(step.ready_ms)}", is_good=True)

    def _scheduled(self, step: Scheduled) -> None:
        self._title("Publish messages for later, cancel some, move some")
        self._say(
            f"{step.messages:,} messages in {ms_text(step.publish_ms)}: some due within seconds,"
            f" most over the next {len(step.per_hour)} hours. {step.cancelled:,} were cancelled,"
            f" {step.moved:,} moved from hours to seconds. The next:"
        )
        now_ms = time.time_ns() // 1_000_000
        lines = table(self._out, "due", "", "key", "id")
        for pending in step.soonest:
            away = due_text(pending.due_ms, now_ms)
            lines.add_row(time_text(pending.due_ms), away, pending.key, pending.message_id)
        self._show(lines)
        self._say("By the hour from now:")
        hours = [(f"{hour}-{hour + 1} h", count) for hour, count in enumerate(step.per_hour)]
        self._show(bars(self._out, hours))
        self._result(
            f"{step.scheduled:,} scheduled", "all listed and counted", is_good=_is_kept(step)
        )

    def _fired(self, step: Fired) -> None:
        self._title("See them come")
        self._say(
            f"{step.came:,} of {step.expected:,} came. From the due time to the consumer's hand (a"
            f" due time is rounded up to {step.tick_ms} ms):"
        )
        self._show(bars(self._out, step.late_counts))
        if step.late_ms:
            spread = ", ".join(f"{name} {ms_text(ms)}" for name, ms in step.late_ms.items())
            self._say(f"{spread} late.")
        self._result(
            f"{step.early:,} early",
            f"{step.cancelled_came:,} after their cancel",
            f"{step.expected - step.came:,} missing",
            is_good=_is_kept(step),
        )

    def _retried(self, step: Retried) -> None:
        self._title("Fail, and try again")
        waits = ", then ".join(ms_text(ms) for ms in step.wait_ms)
        self._say(
            f"Of {step.messages:,} payments, {step.done_at_once:,} succeeded at once and"
            f" {step.done_later:,} after a failure. {step.failing:,} failed every time: after"
            f" {waits} they were tried again, and given up after {step.attempts} attempts."
        )
        lost = step.messages - step.done_at_once - step.done_later - step.dead
        self._result(f"{step.dead:,} dead letters", f"{lost:,} lost", is_good=_is_kept(step))

    def _redriven(self, step: Redriven) -> None:
        self._title("Mend the consumer, and redrive the dead letters")
        lines = table(self._out, ">position", "key", "value", "reason", ">attempts")
        for letter in step.dead_letters:
            lines.add_row(
                letter.position,
                letter.key,
                letter.value,
                one_line(letter.reason),
                str(letter.attempts),
            )
        self._show(lines)
        self._result(
            f"{step.done:,} of {len(step.dead_letters):,} succeeded now",
            f"{counted(step.left, 'dead letter')} left",
            is_good=_is_kept(step),
        )

    def _crashed(self, step: Crashed) -> None:
        self._title("Kill the node with SIGKILL while it works, and start it again")
        self._say(
            "Publishers and a consumer were at it, one message in five for later. They went on"
            " as if nothing had happened; the client sent again what was not answered."
        )
        self._facts(
            (f"{step.acknowledged_before:,}", "messages acknowledged before the kill"),
            (f"{step.acknowledged - step.acknowledged_before:,}", "after it"),
            (f"{step.scheduled:,}", "of all were for later"),
            (f"{step.delivered:,}", "delivered"),
            (f"{step.again:,}", "delivered again, as their ack had not been saved"),
            (
                ms_text(step.silence_ms),
                f"without an answer, {ms_text(step.ready_ms)} of it for the new start",
            ),
        )
        self._result(f"{step.lost:,} lost", f"{step.early:,} early", is_good=_is_kept(step))
        limit = "A kill takes the process, not the machine; `make sim` simulates power cuts."
        self._show(Text(limit, style="dim"))

    def _replayed(self, step: Replayed) -> None:
        self._title("Replay all of it")
        self._say(
            f"A replay with a name, broken off after {step.broken_off_at:,} messages, went on where"
            f" it was left, reading {step.again:,} again; {step.seconds:.2f} s in all."
        )
        self._result(
            f"{step.found:,} of {step.expected:,} acknowledged messages found",
            f"{step.stored_twice:,} stored twice",
            is_good=_is_kept(step),
        )

    def _stopped(self, step: Stopped) -> None:
        self._title("Stop it in good order")
        self._result(
            f"exit code {step.exit_code}", f"in {ms_text(step.stop_ms)}", is_good=_is_kept(step)
        )

    def _damaged(self, step: Damaged) -> None:
        self._title("Flip one bit")
        self._say(
            f"In a copy of a log, one bit of {step.file} was flipped, at byte {step.position:,}."
        )
        for damage in step.found:
            self._say(f"Found: {one_line(str(damage))}.")
        self._say(
            f"Reading the copy gave {step.served:,} messages as they were written and refused"
            f" {step.refused:,}."
        )
        self._result(
            f"{step.wrong:,} served wrong",
            "nothing deleted" if step.is_unchanged else "FILES WERE CHANGED",
            is_good=_is_kept(step),
        )

    def _failed_over(self, step: FailedOver) -> None:
        self._title("Kill a leader of three nodes, and leave it dead")
        if step.orders is None:
            self._say(f"Left out: {step.missing}.")
            return
        orders = step.orders
        self._say(
            f"Three nodes kept every message. {step.leader} was killed; {step.successor} leads in"
            f" its stead, under epoch {step.epoch}. Clients went on at the nodes that are left."
        )
        self._facts(
            (f"{orders.acknowledged_before:,}", "messages acknowledged before the kill"),
            (f"{orders.acknowledged - orders.acknowledged_before:,}", "after it"),
            (f"{orders.delivered:,}", "delivered"),
            (f"{orders.again:,}", "delivered again, as their ack had not been saved"),
            (ms_text(orders.silence_ms), "without an answer"),
        )
        self._result(f"{orders.lost:,} lost", f"{orders.early:,} early", is_good=_is_kept(step))

    def end(self, steps: Steps, seconds: float) -> None:
        """Say how it ended, and what to type next."""
        self._out.print()
        broken = steps.broken()
        if broken:
            self._out.print(f"NOT KEPT: {'; '.join(broken)}", style="bold red")
        else:
            self._out.print(f"Every guarantee was kept, in {seconds:.1f} s. Next:", style="bold")
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


def _is_kept(step: Step) -> bool:
    return not any(step.broken())
