"""`waterclock …` on a machine whose clock is wrong.

python -m tests.cluster.chaos.topics.clocked FILE up …    the file has milliseconds to add to the
time of day; they are read at the start, and again at SIGUSR1. Monotonic time is as it is.
"""

import signal
import sys
from pathlib import Path

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


if __name__ == "__main__":
    set_clock(Path(sys.argv.pop(1)))
    waterclock()
