"""`waterclock …` on a machine whose clock is wrong, and which tells what it waits for.

python -m tests.cluster.chaos.topics.clocked FILE up …    the file has milliseconds to add to the
time of day; they are read at the start, and again at SIGUSR1. Monotonic time is as it is. At
SIGUSR2 it writes to its log where each of its tasks stands.
"""

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waterclock.cli import main as waterclock
from waterclock.model.ids import Millis
from waterclock.runtime.clock import SystemClock


def set_clock(file: Path) -> None:
    """Have the clock of this process go wrong by what a file says."""
    added_ms = 0
    as_it_is = SystemClock.now_ms

    def now_ms(self: SystemClock) -> Millis:
        return Millis(as_it_is(self) + added_ms)

    def read(*_: object) -> None:
        nonlocal added_ms
        added_ms = int(file.read_text()) if file.exists() else 0

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    read()
    signal.signal(signal.SIGUSR1, read)


def tell_tasks(*_: object) -> None:
    """Write where each task waits, the innermost call last: a line for each."""
    for task in asyncio.all_tasks():
        calls = " > ".join(_calls(task.get_coro()))
        print(f"task {task.get_name()}: {calls}", file=sys.stderr)


def _calls(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            yield repr(awaited)
            return
        yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


if __name__ == "__main__":
    set_clock(Path(sys.argv.pop(1)))
    signal.signal(signal.SIGUSR2, tell_tasks)
    waterclock()
