"""Shows the snapshots: a picture that moves on a terminal, a line a second elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demos.dispatch.outcome import Outcome
from demos.dispatch.snapshot import Snapshot
from waterclock.cli.output.figures import rate_text
from waterclock.cli.output.terminal import counted, table

LINE_S = 1.0
STYLES = {"leads": "bold green", "stands by": "cyan", "works": "green", "killed": "bold red"}


class Screen:
    """Shows one demo."""

    def __init__(self, out: Console, *, seconds: float) -> None:
        self._out = out
        self._seconds = seconds
        self._live: Live | None = None
        self._line_at_s = 0.0

    @contextmanager
    def open(self) -> Iterator["Screen"]:
        """Draw in place until the end of the block, if this is a terminal."""
        if not self._out.is_terminal:
            yield self
            return
        with Live(console=self._out, refresh_per_second=8, transient=True) as self._live:
            yield self

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._out.print(Text(text, style="dim"))

    def show(self, snapshot: Snapshot) -> None:
        """Show how things stand."""
        if self._live is not None:
            self._live.update(picture(self._out, snapshot, seconds=self._seconds))
        elif snapshot.at_s >= self._line_at_s:
            self._line_at_s = snapshot.at_s + LINE_S
            self._out.print(line(snapshot))

    def end(self, outcome: Outcome) -> None:
        """Reckon up."""
        self._out.print(summary(self._out, outcome))
        for text in outcome.broken():
            self._out.print(f"NOT KEPT: {text}", style="bold red")
        if not outcome.broken():
            self._out.print(_verdict(outcome), style="bold green")


def line(snapshot: Snapshot) -> str:
    """Return a snapshot as one line."""
    return (
        f"{snapshot.at_s:5.1f} s  sent {snapshot.sent:,} ({rate_text(snapshot.sent_rate, 1)})"
        f"  written {snapshot.written:,} ({rate_text(snapshot.written_rate, 1)})"
        f"  pending {snapshot.pending:,}  queued {snapshot.queued:,}"
        f"  redelivered {snapshot.redelivered:,}  dead {snapshot.dead:,}  epoch {snapshot.epoch}"
    )


def picture(out: Console, snapshot: Snapshot, *, seconds: float) -> Panel:
    """Return a snapshot as a picture."""
    figures = Table.grid(padding=(0, 3))
    for _ in range(4):
        figures.add_column(justify="right")
        figures.add_column(style="dim")
    figures.add_row(
        rate_text(snapshot.sent_rate, 1), "sent", rate_text(snapshot.written_rate, 1), "written",
        f"{snapshot.pending:,}", "at workers", f"{snapshot.queued:,}", "queued",
    )  # fmt: skip
    figures.add_row(
        f"{snapshot.sent:,}", "sent in all", f"{snapshot.written:,}", "in the stream",
        f"{snapshot.redelivered:,}", "redelivered", f"{snapshot.dead:,}", "dead",
    )  # fmt: skip
    processes = table(out, "process", "state", ">messages")
    for process in snapshot.processes:
        state = Text(process.state, style=STYLES.get(process.state, ""))
        processes.add_row(process.name, state, f"{process.messages:,}")
    events = Text("\n".join(snapshot.events), style="yellow")
    title = f"waterclock dispatch  {min(snapshot.at_s, seconds):.0f} of {seconds:g} s"
    body = Group(
        figures, Text(f"\nleader epoch {snapshot.epoch}\n", style="bold"), processes, events
    )
    return Panel(body, title=title, title_align="left", padding=(1, 2))


def summary(out: Console, outcome: Outcome) -> Table:
    """Return the sum at the end as a table."""
    found = table(out, ">count", "what")
    rows = [
        (f"{outcome.sent:,}", f"messages sent, by {outcome.source_kind}"),
        (f"{outcome.written:,}", "in the output stream"),
        (f"{outcome.dead:,}", "in the dead stream, cut off by their devices"),
        (f"{outcome.lost:,}", "lost"),
        (f"{outcome.twice:,}", "twice in the output stream"),
        (f"{outcome.redelivered:,}", "handed out again"),
    ]
    for victim, count in outcome.killed.items():
        rows.append((f"{count:,}", f"kill -9 of a {victim}"))
    if outcome.takeovers_s:
        shown = ", ".join(f"{seconds:.2f} s" for seconds in outcome.takeovers_s)
        rows.append((shown, "until the next leader's first entry"))
    for row in rows:
        found.add_row(*row)
    return found


def _verdict(outcome: Outcome) -> str:
    kills = counted(sum(outcome.killed.values()), "kill")
    rate = rate_text(outcome.sent, outcome.seconds)
    if outcome.lost:
        return f"{counted(outcome.lost, 'message')} lost, as announced, none twice; {kills}, {rate}"
    return f"Nothing lost, nothing twice; {kills}, {rate}."
