"""The processes that a command runs: started, followed, signalled, and asked how they ended."""

import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from waterclock.cli.commands.cluster.processes import EXIT_AT_ONCE, lines_of, start_process
from waterclock.cli.commands.cluster.voice import Voice
from waterclock.cli.output.terminal import one_line
from waterclock.runtime import supervisor

EXIT_HUNG_UP: Final = 128 + signal.SIGHUP
_ERROR: Final = "error: "


class Child:
    """One process, however often it is started."""

    def __init__(self, name: str, colour: str) -> None:
        self.name = name
        self.colour = colour
        self.facts: dict[str, Any] = {}
        """What it said of itself when it was ready, for the first time or again."""
        self.error = ""
        """Why it ended, as it says."""
        self.ready_at: float | None = None
        self._started: Process | None = None
        self._must_reload = False

    @property
    def is_running(self) -> bool:
        """It was started, and has not ended."""
        return self._started is not None and self._started.returncode is None

    async def start(self, words: Sequence[str], *, descriptors: Sequence[int] = ()) -> Process:
        """Start it, with what it says to us."""
        self.error, self.ready_at, self._must_reload = "", None, False
        self._started = await start_process(
            words, stdout=PIPE, stderr=PIPE, descriptors=descriptors
        )
        return self._started

    def became_ready(self, facts: dict[str, Any]) -> None:
        """Note what it says of itself."""
        self.facts, self.ready_at = facts, time.monotonic()
        if self._must_reload:
            self.reload()

    def reload(self) -> None:
        """Have it read its settings again; while it starts, SIGHUP could end it."""
        self._must_reload = self.ready_at is None
        if not self._must_reload:
            self.signal(signal.SIGHUP)

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._started is not None and self.is_running:
            with suppress(ProcessLookupError):
                self._started.send_signal(number)

    async def pass_on_log(self, voice: Voice, *, is_named: bool = False) -> None:
        """Show what it logs, line by line, with its name if wanted; its last error is kept back."""
        assert self._started is not None
        assert self._started.stderr is not None
        async for line in lines_of(self._started.stderr):
            text = line.decode(errors="backslashreplace").rstrip()
            if text.startswith(_ERROR):
                self.error = one_line(text.removeprefix(_ERROR))
            else:
                shown = f"{self.name}  {text}" if is_named else text
                voice.pass_on(self.name, self.colour, shown)

    def end_text(self) -> str:
        """Return how it ended."""
        code = None if self._started is None else self._started.returncode
        assert code is not None
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        if self.error:
            return f"ended: {self.error}"
        return f"ended with exit code {code}" if code else "has stopped"


def signal_all(children: Sequence[Child], number: int) -> None:
    """Send all that run a signal."""
    for child in children:
        child.signal(number)


def end_at_once(children: Sequence[Child]) -> None:
    """End all, and this process, without a word."""
    signal_all(children, signal.SIGKILL)
    os._exit(EXIT_AT_ONCE)


def hanging_up(children: Sequence[Child]) -> Callable[[], None]:
    """Return what SIGHUP does: all read their settings again, or end with the window."""
    has_terminal = os.isatty(0)

    def hung_up() -> None:
        if has_terminal and not os.isatty(0):  # the window was closed
            signal_all(children, signal.SIGTERM)
            os._exit(EXIT_HUNG_UP)
        were_ready = all(child.facts for child in children)
        if were_ready:  # else that they are is still to be told
            supervisor.tell_reloading()
        for child in children:
            child.reload()
        if were_ready:
            supervisor.tell_ready()

    return hung_up
