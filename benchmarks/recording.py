"""What may be written into RESULTS.md: runs of committed code, on a machine that is quiet.

Everybody compares with what stands there, so there is no flag that says "all the same". Without
`--record` a benchmark runs anywhere, and says in its notes what is wrong.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

from benchmarks.harness import BUSY_LOAD, scale
from benchmarks.machine import changed_files

WAIT_S_MAX = 150
"""The load of the last minute forgets half in 40 s, so by then that of the benchmark before this
one, up to 10; work that goes on stays."""
LOOK_S = 5


def options_of(parser: argparse.ArgumentParser, *, what: str = "RESULTS.md") -> argparse.Namespace:
    """Read the flags, `--record` among them; end the program if this run must not be recorded."""
    parser.add_argument("--record", action="store_true", help=f"write {what}")
    options = parser.parse_args()
    if options.record and (reason := refusal(changed_files(), scale())):
        sys.exit(f"not recorded, and not run: {reason}")
    return options


def refusal(
    changed: list[str],
    scale: float,
    *,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Say why a run must not be recorded, or nothing. Waits for the machine to become quiet."""
    if scale != 1:
        return f"BENCH_SCALE is {scale:g}, and bars are set for 1"
    if changed:
        return f"{', '.join(changed[:3])} differ from the commit ({len(changed)} in all)"
    for _ in range(WAIT_S_MAX // LOOK_S):
        if load() <= BUSY_LOAD:
            return ""
        wait(LOOK_S)
    return f"the load is {load():.1f} after {WAIT_S_MAX} s, and should be {BUSY_LOAD:g} at most"
