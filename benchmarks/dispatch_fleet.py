"""Several programs as one: workers of a benchmark in one process group, ended together.

    python -m benchmarks.dispatch_fleet '[["python", "-m", "worker"], ...]'

All get the signal that ends this one. If one ends by itself, so do the others, and with an error:
a fleet that shrinks is not measured.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

STOP_S_MAX = 10


def command(*programs: Sequence[str]) -> list[str]:
    """Give the command line that runs these programs together."""
    return [sys.executable, "-m", "benchmarks.dispatch_fleet", json.dumps(programs)]


def main() -> None:
    """Run them until told to end."""
    commands = json.loads(sys.argv[1])
    is_reported = False

    def said(number: int, frame: object) -> None:
        nonlocal is_reported
        is_reported = True
        stop()

    def stop() -> None:
        for each in running:
            if each.poll() is None:
                each.terminate()

    running: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, said)
    running += [subprocess.Popen(each) for each in commands]
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    stop()
    for each in running:
        try:
            each.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            each.kill()
    sys.exit(0 if is_reported else 1)


if __name__ == "__main__":
    main()
